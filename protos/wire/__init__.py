"""Defines the messages between coordinator and sites, and their encoding as bytes."""
