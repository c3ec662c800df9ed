//! Places of turns in a conversation, told by prints of what users and tools say before them.

use super::{Said, print};
use crate::{Block, Message, Role};
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

/// Where in a conversation a turn of the model's stands, by prints of what others say in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// All before it that users and tools say.
    pub(super) whole: u64,
    /// The same by what each of their messages ends in, which stays when a harness changes what it
    /// puts before that.
    pub(super) path: u64,
    /// The message before it, which stays when a harness leaves out older ones.
    pub(super) before: u64,
}

impl Place {
    pub(super) fn is_like(self, other: Self) -> bool {
        self.path == other.path || self.before == other.before
    }

    pub(super) fn behind(self, message: &Message) -> Self {
        let before = print_of_end(message);
        match message.role {
            Role::User | Role::Tool => Self {
                whole: print((self.whole, print_of(message))),
                path: print((self.path, before)),
                before,
            },
            Role::System | Role::Developer | Role::Assistant => Self { before, ..self },
        }
    }
}

/// A print of all that a message says, the same in all dialects, however its text is cut.
fn print_of(message: &Message) -> u64 {
    let mut hasher = DefaultHasher::new();
    for block in &message.blocks {
        match block {
            Block::Text(text) => hasher.write(text.as_bytes()),
            other => print_of_block(other).hash(&mut hasher),
        }
    }
    hasher.finish()
}

/// A print of what it ends in.
fn print_of_end(message: &Message) -> u64 {
    message.blocks.last().map_or(0, print_of_block)
}

fn print_of_block(block: &Block) -> u64 {
    match block {
        Block::Text(text) => print(text.as_str()),
        Block::ToolResult { call_id, content, .. } => print((call_id, Said::of(content).text)),
        other => print(format!("{other:?}")),
    }
}
