"""Turn weights into compile-time constants and detect when they change."""
