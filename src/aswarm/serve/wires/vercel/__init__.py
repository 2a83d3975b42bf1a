"""Vercel's UI message stream, version 1: the wire for `useChat` of the AI SDK."""
