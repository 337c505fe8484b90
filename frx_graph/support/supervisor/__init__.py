"""Start processes that each lead a session, and end every process of that session with them."""
