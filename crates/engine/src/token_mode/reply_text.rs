//! What the ids of one reply say, and how many of them are reasoning.

use crate::parsing::ReplyParsing;
use crate::{EngineError, EngineEvent};
use polar_convo::ReplyEvent;
use polar_tokens::detokenizer::Detokenizer;
use polar_tokens::tokenizer::Tokenizer;
use std::sync::Arc;

type Event = Result<EngineEvent, EngineError>;

/// Makes text, reasoning and calls of ids as they come.
pub(super) struct ReplyText {
    pub(super) text: Detokenizer,
    pub(super) parsing: ReplyParsing,
    /// Nothing of a model that does not reason.
    pub(super) reasoning: Option<ReasoningIds>,
}

impl ReplyText {
    pub(super) fn take(&mut self, event: Event) -> Vec<Event> {
        match event {
            Ok(EngineEvent::Chunk { ids, logprobs, .. }) => {
                let mut events = Vec::new();
                ids.iter().for_each(|id| self.take_id(*id, &mut events));
                vec![Ok(EngineEvent::Chunk { events, ids, logprobs })]
            }
            Ok(EngineEvent::End(end)) => {
                let mut events = Vec::new();
                let rest = self.text.finish();
                self.parsing.read(&rest, &mut events);
                let mut last = self.parsing.take(Ok(EngineEvent::End(end)));
                let ids_of =
                    |events| EngineEvent::Chunk { events, ids: Vec::new(), logprobs: Vec::new() };
                if !events.is_empty() {
                    last.insert(0, Ok(ids_of(events)));
                }
                self.count(&mut last);
                last
            }
            other => vec![other],
        }
    }

    fn take_id(&mut self, id: u32, out: &mut Vec<ReplyEvent>) {
        let text = self.text.push(&[id]);
        let mut events = Vec::new();
        if !text.is_empty() {
            self.parsing.read(&text, &mut events);
        }
        if let Some(reasoning) = &mut self.reasoning {
            reasoning.take(id, &events);
        }
        events.into_iter().for_each(|event| join(event, out));
    }

    /// Says in the end how much was reasoning.
    fn count(&mut self, last: &mut [Event]) {
        let Some(reasoning) = &mut self.reasoning else { return };
        for event in last {
            match event {
                Ok(EngineEvent::Chunk { events, .. }) => reasoning.decide(events),
                Ok(EngineEvent::End(end)) => {
                    end.usage.reasoning_tokens = Some(reasoning.counted);
                }
                _ => {}
            }
        }
    }
}

/// Counts the ids whose text is reasoning. Marks are none, as vLLM counts.
pub(super) struct ReasoningIds {
    tokenizer: Arc<Tokenizer>,
    /// Ids whose text is not known to be one or the other: half a character, what may begin a mark.
    undecided: u64,
    counted: u64,
}

impl ReasoningIds {
    pub(super) fn new(tokenizer: &Arc<Tokenizer>) -> Self {
        Self { tokenizer: Arc::clone(tokenizer), undecided: 0, counted: 0 }
    }

    /// Takes the next id, and what became certain with it.
    fn take(&mut self, id: u32, events: &[ReplyEvent]) {
        let is_mark = self.tokenizer.is_added(id);
        match events.last() {
            None => self.undecided += u64::from(!is_mark),
            Some(last) => {
                self.decide(events);
                let is_reasoning = matches!(last, ReplyEvent::Reasoning(_));
                self.counted += u64::from(is_reasoning && !is_mark);
            }
        }
    }

    /// What was held back is what comes first.
    fn decide(&mut self, events: &[ReplyEvent]) {
        let Some(first) = events.first() else { return };
        let undecided = std::mem::take(&mut self.undecided);
        if matches!(first, ReplyEvent::Reasoning(_)) {
            self.counted += undecided;
        }
    }
}

/// Puts more of the same text into one event.
fn join(event: ReplyEvent, out: &mut Vec<ReplyEvent>) {
    match (out.last_mut(), &event) {
        (Some(ReplyEvent::Text(text)), ReplyEvent::Text(more))
        | (Some(ReplyEvent::Reasoning(text)), ReplyEvent::Reasoning(more)) => text.push_str(more),
        (
            Some(ReplyEvent::ToolArguments { index, fragment }),
            ReplyEvent::ToolArguments { index: same, fragment: more },
        ) if index == same => fragment.push_str(more),
        _ => out.push(event),
    }
}
