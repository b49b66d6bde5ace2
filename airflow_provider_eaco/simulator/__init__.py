"""The engine on virtual time and in memory."""
