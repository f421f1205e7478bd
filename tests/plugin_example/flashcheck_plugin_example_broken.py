"""A subject whose module cannot be imported: it needs what is not installed."""

from __future__ import annotations

raise ImportError("libcudart_of_the_future.so: cannot open shared object file")
