//! The HTTP API, over real sockets and a real database.

mod support;
mod tasks;
