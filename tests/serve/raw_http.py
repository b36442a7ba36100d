"""Responses read from sockets, for tests that send what no client library sends."""

import http.client
import socket


def read_status(connection: socket.socket) -> int:
    """Read a whole response, and return its status. Its head and its body may arrive one after the other."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    response.read()
    return response.status
