//! The dialect Google generateContent.
//!
//! The model and the framing of the stream stand in a request's address, not in its body; see
//! [`terms`].

pub(crate) mod contents;
pub(crate) mod decode;
pub(crate) mod error;
pub(crate) mod generation;
pub(crate) mod models;
pub(crate) mod parts;
pub(crate) mod reply;
pub(crate) mod schema;
pub(crate) mod signature;
pub(crate) mod terms;
pub(crate) mod tools;
