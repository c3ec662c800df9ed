//! The bytes of the protocols: server-sent events and the JSON shapes of the client
//! dialects.
//!
//! Owns no state beyond a parser's buffer, knows no sockets and takes no decisions:
//! what a shape means is the business of `convo` (clients) and `engine` (engines).

pub mod sse;
