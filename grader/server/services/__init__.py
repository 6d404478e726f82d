"""What the server does, apart from HTTP."""
