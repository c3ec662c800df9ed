//! What a model's tokens and text mean, apart from any engine.
//!
//! [`template`] makes a prompt's text of messages and tools. [`parse`] takes apart the text that a
//! model wrote: reasoning, visible text and tool calls, in the format its family was trained on.
//! Everything here is pure: no IO, no clock, no knowledge of who samples or who asks.

pub mod parse;
pub mod python_json;
pub mod template;
