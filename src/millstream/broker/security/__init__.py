"""Who is connected, what they may do, and how connections are protected."""
