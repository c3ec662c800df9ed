//! The dialect OpenAI Chat Completions.

pub(crate) mod decode;
pub(crate) mod error;
pub(crate) mod messages;
pub(crate) mod models;
pub(crate) mod reply;
pub(crate) mod terms;
pub(crate) mod tools;
