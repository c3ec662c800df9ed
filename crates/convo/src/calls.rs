//! Pairs the calls of a conversation with their results.
//!
//! Ids are optional in Google's dialect, and unknown to Chat's `functions`. A call without one gets an id from its position, so that
//! the same history always has the same ids; a result without one answers the first call
//! of its name that is still open.

use std::collections::HashMap;

#[derive(Default)]
pub(crate) struct Calls {
    made: usize,
    /// Tool name of each call.
    names: HashMap<String, String>,
    /// Calls of the last model turn that have no result yet.
    open: Vec<OpenCall>,
}

struct OpenCall {
    id: String,
    /// Whether the id is from here.
    minted: bool,
}

/// What a result answers.
pub(crate) struct Answered {
    pub(crate) id: String,
    /// Whether the result names another tool than the call.
    pub(crate) other_name: bool,
}

impl Calls {
    /// Results without an id answer calls of the last turn only.
    pub(crate) fn begin_turn(&mut self) {
        self.open.clear();
    }

    /// Notes a call and returns its id.
    pub(crate) fn call(&mut self, id: Option<String>, name: &str) -> String {
        let minted = id.is_none();
        // Nine letters and digits, the strictest form that a chat template asks for.
        let id = id.unwrap_or_else(|| format!("call{:05}", self.made));
        self.made += 1;
        self.names.insert(id.clone(), name.to_owned());
        self.open.push(OpenCall { id: id.clone(), minted });
        id
    }

    /// The call that a result answers; `None` when nothing says which.
    pub(crate) fn answer(&mut self, id: Option<String>, name: &str) -> Option<Answered> {
        let named = |call: &OpenCall| self.names.get(&call.id).is_some_and(|n| n == name);
        let open = match &id {
            None => self.open.iter().position(named),
            // Some clients make up the id of a call that had none.
            Some(id) => self.open.iter().position(|call| call.id == *id).or_else(|| {
                let known = self.names.contains_key(id);
                self.open.iter().position(|call| !known && call.minted && named(call))
            }),
        };
        let id = match open {
            Some(i) => self.open.remove(i).id,
            None => id?,
        };
        let other_name = self.names.get(&id).is_none_or(|called| called != name);
        Some(Answered { id, other_name })
    }
}
