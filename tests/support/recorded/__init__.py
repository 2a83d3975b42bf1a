"""The recorded answers of providers: a decoder of its own, a player, and the comparison."""
