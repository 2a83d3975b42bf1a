"""Vercel's UI message stream, version 1: runs for `useChat` of the AI SDK."""
