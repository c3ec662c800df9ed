//! The dialect Anthropic Messages.

pub(crate) mod decode;
pub(crate) mod error;
pub(crate) mod models;
pub(crate) mod reply;
