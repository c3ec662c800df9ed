//! The dialect OpenAI Responses.

pub(crate) mod custom_input;
pub(crate) mod decode;
pub(crate) mod error;
pub(crate) mod history;
pub(crate) mod items;
pub(crate) mod local_shell;
pub(crate) mod reasoning;
pub(crate) mod reply;
pub(crate) mod terms;
pub(crate) mod tools;

pub(crate) use tools::respelled;
