//! What a template puts behind a turn of the model, see the module above.

use super::{Conversation, PromptError, PromptRenderer};
use serde_json::{Value, json};

/// How a turn of the model ended, as the prompt after it has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnEnd {
    /// With the mark that the template puts there.
    Marked,
    /// With another stop token, in the mark's place.
    OtherMark,
    /// Without one: the mark was put behind what was sampled.
    Closed,
}

impl TurnEnd {
    /// The name kept in records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Marked => "marked",
            Self::OtherMark => "other_mark",
            Self::Closed => "closed",
        }
    }
}

/// Ids between what was sampled and the next generation.
pub(super) struct Tail {
    pub(super) ids: Vec<u32>,
    pub(super) end: TurnEnd,
}

/// Texts that stand in for what a tail does not depend on.
struct Words {
    system: String,
    user: String,
    tool: String,
    /// The end of what the model says.
    end: String,
}

impl Words {
    /// Words that are in none of these messages: a tail begins behind the last `end` there is.
    fn unlike(messages: &[Value]) -> Self {
        let said: Vec<String> = messages.iter().map(Value::to_string).collect();
        // No template changes plain letters.
        let mut stem = "PolarStandIn".to_owned();
        while said.iter().any(|said| said.contains(&stem)) {
            stem.push('x');
        }
        let word = |name: &str| format!("{stem}{name}");
        Self { system: word("System"), user: word("User"), tool: word("Tool"), end: word("End") }
    }

    fn are_in(&self, text: &str) -> bool {
        [&self.system, &self.user, &self.tool, &self.end].iter().any(|word| text.contains(*word))
    }

    /// What a text has behind the last end.
    fn behind_end<'a>(&self, text: &'a str) -> Option<&'a str> {
        text.rfind(&self.end).map(|at| &text[at + self.end.len()..])
    }

    /// The turn with a known text in place of what it says last. Results refer to the names and
    /// ids of calls, and a few templates write a turn's text behind the mark that ends its calls.
    fn turn(&self, turn: &Value) -> Value {
        let mut turn = turn.clone();
        let calls = turn.get_mut("tool_calls").and_then(Value::as_array_mut);
        let Some(calls) = calls.filter(|calls| !calls.is_empty()) else {
            if let Some(turn) = turn.as_object_mut() {
                turn.remove("tool_calls");
            }
            turn["content"] = self.end.as_str().into();
            return turn;
        };
        for call in calls {
            let arguments = &mut call["function"]["arguments"];
            *arguments = match arguments.is_object() {
                true => json!({"value": self.end}),
                false => json!({"value": self.end}).to_string().into(),
            };
        }
        turn
    }
}

/// The mark between two turns, and the text behind it.
#[derive(PartialEq)]
struct Behind {
    mark: u32,
    /// The mark belongs to the turn that comes, and only stops the model because of that.
    opens: bool,
    text: String,
}

impl PromptRenderer {
    /// The tail behind the turn of the model that is the last message before `from`, whose
    /// sampled ids end in `last`; none where nothing was sampled.
    pub(super) fn tail(
        &self,
        conversation: &Conversation<'_>,
        from: usize,
        last: Option<u32>,
    ) -> Result<Tail, PromptError> {
        let behind = self.behind(conversation, from)?;
        let ids = self.tokenizer().encode_behind(behind.mark, &behind.text)?;
        let end = match last {
            Some(last) if last == behind.mark => TurnEnd::Marked,
            Some(last) if self.stop_ids().contains(&last) => TurnEnd::OtherMark,
            _ => TurnEnd::Closed,
        };
        let takes_its_place = !behind.opens && end == TurnEnd::OtherMark;
        let ids = match end == TurnEnd::Marked || takes_its_place {
            true => ids,
            false => [vec![behind.mark], ids].concat(),
        };
        Ok(Tail { ids, end })
    }

    fn behind(&self, conversation: &Conversation<'_>, from: usize) -> Result<Behind, PromptError> {
        let short = StandIn::short(conversation, from);
        if let Ok(behind) = self.behind_in(conversation, &short, from)
            && !short.words.are_in(&behind.text)
            && !self.depends_on_calls_before(conversation, short, from, &behind)
        {
            return Ok(behind);
        }
        self.behind_in(conversation, &StandIn::whole(conversation, from), from)
    }

    /// Whether the tail is another one behind calls and results: some templates number them, or
    /// write the first of a conversation otherwise.
    fn depends_on_calls_before(
        &self,
        conversation: &Conversation<'_>,
        short: StandIn,
        from: usize,
        behind: &Behind,
    ) -> bool {
        let before = &conversation.messages[..from - 1];
        if !before.iter().any(|message| message["role"] == "tool") {
            return false;
        }
        // A template that refuses calls writes none.
        let longer = self.behind_in(conversation, &short.after_a_call(), from);
        longer.is_ok_and(|longer| longer != *behind)
    }

    fn behind_in(
        &self,
        conversation: &Conversation<'_>,
        before: &StandIn,
        from: usize,
    ) -> Result<Behind, PromptError> {
        let mut messages = before.messages.clone();
        let mut alone = self.text(conversation, &messages, &before.tools, false)?;
        if before.words.behind_end(&alone).is_none() {
            // A template that writes no calls.
            if let Some(turn) = messages.last_mut() {
                turn["content"] = before.words.end.as_str().into();
            }
            alone = self.text(conversation, &messages, &before.tools, false)?;
        }
        messages.extend_from_slice(&conversation.messages[from..]);
        let whole = self.text(conversation, &messages, &before.tools, true)?;
        let alone = before.words.behind_end(&alone).ok_or(PromptError::NoEndMark)?;
        let whole = before.words.behind_end(&whole).ok_or(PromptError::NoEndMark)?;
        // A template may write another mark behind the last turn than behind earlier ones
        // (gpt-oss), but in the same place.
        let closed_at = self.first_stop(alone).filter(|at| whole.starts_with(&alone[..*at]));
        let at = closed_at.unwrap_or_else(|| common_length(alone, whole));
        let rest = whole[at..].trim_start();
        let (mark, length) = self.special_at(rest).ok_or(PromptError::NoEndMark)?;
        let text = rest[length..].to_owned();
        Ok(Behind { mark, opens: closed_at.is_none(), text })
    }

    /// Where the first stop token is.
    fn first_stop(&self, text: &str) -> Option<usize> {
        let stops = self.stop_ids().iter().filter_map(|id| {
            let mark = std::str::from_utf8(self.tokenizer().bytes(*id)).ok()?;
            text.find(mark).filter(|_| !mark.is_empty())
        });
        stops.min()
    }

    /// The special token that a text begins with, and its length.
    fn special_at(&self, text: &str) -> Option<(u32, usize)> {
        let begins = self.tokenizer().added().filter(|(id, mark)| {
            !mark.is_empty() && self.may_end_a_turn(*id) && text.as_bytes().starts_with(mark)
        });
        begins.map(|(id, mark)| (id, mark.len())).max_by_key(|(_, length)| *length)
    }
}

/// A conversation up to the end of a turn of the model, with a known text at that end.
struct StandIn {
    words: Words,
    messages: Vec<Value>,
    tools: Vec<Value>,
}

impl StandIn {
    /// No longer than the turn itself.
    fn short(conversation: &Conversation<'_>, from: usize) -> Self {
        let words = Words::unlike(&conversation.messages[from - 1..]);
        let Words { system, user, tool, .. } = &words;
        let mut messages = Vec::new();
        if conversation.messages.first().is_some_and(|first| first["role"] == "system") {
            messages.push(json!({"role": "system", "content": system}));
        }
        messages.push(json!({"role": "user", "content": user}));
        messages.push(words.turn(&conversation.messages[from - 1]));
        let tools = match conversation.tools.is_empty() {
            true => Vec::new(),
            false => vec![json!({"type": "function", "function": {
                "name": tool, "description": tool,
                "parameters": {"type": "object", "properties": {}},
            }})],
        };
        Self { words, messages, tools }
    }

    /// The same behind a call, its result and an answer.
    fn after_a_call(self) -> Self {
        let Self { words, mut messages, tools } = self;
        let Words { user, tool, .. } = &words;
        // Mistral's templates take ids of nine letters and digits.
        let id = "PolarCall";
        let call = json!({"id": id, "type": "function", "function": {
            "name": tool, "arguments": {"value": user},
        }});
        let exchange = [
            json!({"role": "user", "content": user}),
            json!({"role": "assistant", "content": "", "tool_calls": [call]}),
            json!({"role": "tool", "tool_call_id": id, "name": tool, "content": user}),
            json!({"role": "assistant", "content": user}),
        ];
        let question = messages.len() - 2;
        messages.splice(question..question, exchange);
        Self { words, messages, tools }
    }

    /// With all that was said before the turn.
    fn whole(conversation: &Conversation<'_>, from: usize) -> Self {
        let words = Words::unlike(conversation.messages);
        let mut messages = conversation.messages[..from - 1].to_vec();
        messages.push(words.turn(&conversation.messages[from - 1]));
        Self { words, messages, tools: conversation.tools.to_vec() }
    }
}

/// Bytes that two texts have in common at their beginning.
fn common_length(one: &str, other: &str) -> usize {
    let same = one.char_indices().zip(other.chars()).take_while(|((_, a), b)| a == b);
    same.last().map_or(0, |((at, character), _)| at + character.len_utf8())
}
