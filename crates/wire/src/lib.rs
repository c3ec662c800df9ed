//! The bytes of the protocols: server-sent events and the JSON shapes of the client
//! dialects.
//!
//! Owns no state beyond a parser's buffer, knows no sockets and takes no decisions:
//! what a shape means is the business of `convo` (clients) and `engine` (engines).
//!
//! Shapes that are written stand here as structs that borrow, because they are written once
//! for every token. Requests have no structs: `convo` reads them field by field, so that an
//! error can name the field and nothing unknown gets lost.

pub mod chat;
pub mod google;
pub mod json;
pub mod messages;
pub mod responses;
pub mod sse;
