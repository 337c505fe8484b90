"""Open, migrate and read the ledger's database, SQLite or PostgreSQL."""
