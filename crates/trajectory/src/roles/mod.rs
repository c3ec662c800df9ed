//! Who made each call: a pure function of what was recorded.
//!
//! | asked in this order | role | `by` |
//! |---|---|---|
//! | a rule of the harness's adapter fits | the rule's | its name |
//! | the prompt holds an earlier reply | that call's, unless it was a title, a summary or a probe | `continues` |
//! | the same was asked before | that call's | `retry` |
//! | the prompt holds an earlier summary | that of the conversation summed up | `after_summary` |
//! | a new conversation begins with what an earlier call gave a tool | sub-agent; side where it offers no tools while other calls do | `started_by_call` |
//! | it offers no tools, while other calls do and none of them goes on from it | side | `no_tools` |
//! | anything else | main | `first`, `same_system`, `other_system` |
//!
//! A reply is recognised by its tool calls' ids, which every harness keeps, or by its text:
//! harnesses change much else of their own history. Where several replies fit, it is the one whose
//! conversation the prompt shares most of. What a tool was given starts no sub-agent where the
//! user had said it before, and no tools are offered or the same program begins anew.

mod conversation;
mod rules;

use conversation::Conversation;
use polar_record::RecordedSession;
use polar_types::{CallId, CallOrigin, CallRole, Confidence};
use rules::{Fit, Rules};
use std::collections::HashMap;

/// Role, confidence and parent of every call of a session, in order.
pub(crate) fn origins(session: &RecordedSession) -> Vec<CallOrigin> {
    let mut assigner = Assigner {
        session,
        rules: Rules::of(&session.header.rules),
        conversation: Conversation::new(session),
        offers_tools: session.calls().iter().any(|call| call.tools_number().is_some()),
        origins: Vec::new(),
        prompts: HashMap::new(),
    };
    for index in 0..session.calls().len() as u32 {
        let origin = assigner.origin(index);
        assigner.pass(index, origin);
    }
    assigner.origins
}

struct Assigner<'a> {
    session: &'a RecordedSession,
    rules: Rules<'a>,
    conversation: Conversation<'a>,
    /// Whether any call of the session offers tools.
    offers_tools: bool,
    origins: Vec<CallOrigin>,
    /// The latest call with a prompt: its place in the tree of messages and its tools.
    prompts: HashMap<((u32, usize), Option<u32>), u32>,
}

impl Assigner<'_> {
    fn origin(&self, index: u32) -> CallOrigin {
        let retried = self.prompt_key(index).and_then(|key| self.prompts.get(&key).copied());
        let mut origin = match self.rules.fitting(self.session, &self.conversation, index) {
            Some(fit) => self.by_rule(index, &fit),
            None => self.by_place(index, retried),
        };
        origin.retry_of = retried.map(|call| self.id(call));
        origin
    }

    fn pass(&mut self, index: u32, origin: CallOrigin) {
        self.origins.push(origin);
        if let Some(key) = self.prompt_key(index) {
            self.prompts.insert(key, index);
        }
    }

    fn by_rule(&self, index: u32, fit: &Fit<'_>) -> CallOrigin {
        let role = fit.rule.role;
        let before = self.conversation.predecessor(index);
        let inherited = || before.and_then(|call| self.origin_of(call).parent.clone());
        let parent = match role {
            CallRole::Main => inherited(),
            CallRole::SubAgent => fit
                .parent
                .or_else(|| self.conversation.starter(index))
                .map(|call| self.id(call))
                .or_else(|| {
                    let call = before.filter(|call| self.origin_of(*call).role == role);
                    call.and_then(|call| self.origin_of(call).parent.clone())
                })
                .or_else(|| self.latest(CallRole::Main)),
            _ => before.map(|call| self.id(call)),
        };
        let by = fit.rule.name.clone();
        CallOrigin { role, confidence: fit.confidence, by, parent, retry_of: None }
    }

    fn by_place(&self, index: u32, retried: Option<u32>) -> CallOrigin {
        use CallRole::{Main, Side, SubAgent};
        let is_line = |call: &u32| matches!(self.origin_of(*call).role, Main | SubAgent | Side);
        let has_tools = |call: u32| self.session.calls()[call as usize].tools_number().is_some();
        let is_alone = !has_tools(index) && !self.conversation.leads_to_tools(index);
        if let Some(before) = self.conversation.predecessor(index).filter(is_line) {
            let mut origin = self.like(before, "continues");
            // The agent's last word, or a look back over its work that nobody has a rule for.
            if is_alone && has_tools(before) {
                origin.confidence = Confidence::Guessed;
            }
            return origin;
        }
        if let Some(retried) = retried {
            return self.like(retried, "retry");
        }
        let helps = is_alone && self.offers_tools;
        if let (false, Some(summary)) = (helps, self.summary_behind(index)) {
            let summed_up = self.origin_of(summary).parent.as_ref();
            let summed_up = summed_up.and_then(|id| self.index_of(id));
            let role = summed_up.map_or(Main, |call| self.origin_of(call).role);
            let parent = Some(self.id(summary));
            return told(role, Confidence::Likely, "after_summary", parent);
        }
        if let Some(starter) = self.conversation.starter(index) {
            let parent = Some(self.id(starter));
            return match helps {
                // What a tool asks of a model to do its own work.
                true => told(Side, Confidence::Guessed, "started_by_call", parent),
                false => told(SubAgent, Confidence::Likely, "started_by_call", parent),
            };
        }
        if helps {
            return told(Side, Confidence::Guessed, "no_tools", None);
        }
        let fronts = || (0..index).filter(|call| self.origin_of(*call).role == Main);
        let front = self.conversation.front(index);
        if fronts().next().is_none() {
            told(Main, Confidence::Likely, "first", None)
        } else if fronts().any(|call| self.conversation.front(call) == front) {
            told(Main, Confidence::Likely, "same_system", None)
        } else {
            told(Main, Confidence::Guessed, "other_system", None)
        }
    }

    /// The role of another call of the same line.
    fn like(&self, call: u32, by: &str) -> CallOrigin {
        let origin = self.origin_of(call);
        told(origin.role, origin.confidence, by, origin.parent.clone())
    }

    /// The summary that a prompt goes on from.
    fn summary_behind(&self, index: u32) -> Option<u32> {
        let mut summaries =
            (0..index).rev().filter(|call| self.origin_of(*call).role == CallRole::Summary);
        summaries.find(|summary| self.conversation.holds_words_of(index, *summary))
    }

    fn latest(&self, role: CallRole) -> Option<CallId> {
        let at = self.origins.iter().rposition(|origin| origin.role == role)?;
        Some(self.id(at as u32))
    }

    fn origin_of(&self, call: u32) -> &CallOrigin {
        &self.origins[call as usize]
    }

    fn id(&self, call: u32) -> CallId {
        self.session.calls()[call as usize].meta.call_id.clone()
    }

    fn index_of(&self, id: &CallId) -> Option<u32> {
        let at = self.session.calls().iter().position(|call| call.meta.call_id == *id)?;
        Some(at as u32)
    }

    fn prompt_key(&self, index: u32) -> Option<((u32, usize), Option<u32>)> {
        let call = &self.session.calls()[index as usize];
        let tree = self.session.messages_tree();
        let prompt = tree.ancestor(call.exchange_end(), call.prompt_messages())?;
        Some((tree.nodes_up(prompt).next()?, call.tools_number()))
    }
}

fn told(role: CallRole, confidence: Confidence, by: &str, parent: Option<CallId>) -> CallOrigin {
    CallOrigin { role, confidence, by: by.to_owned(), parent, retry_of: None }
}
