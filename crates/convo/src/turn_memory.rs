//! What one session remembers of the replies it has told, so that it knows them again.
//!
//! Harnesses keep their own history and change it: they read arguments and spell them anew, and
//! drop or trim reasoning. A prompt built from such a history is not the one in which the model
//! goes on from what it sampled. So each assistant message of a request is looked up, by the ids
//! of its calls, or by its text and what stands before it where it has none, and gets back what
//! only its spelling has lost. Where several turns fit, it is the one in whose place it stands. A call
//! that the harness is known to write in the place of one that it could not run gives way to what was
//! sampled. What else a harness has changed in meaning stays as the harness says it. Either way the
//! request says what was done ([`HistoryReport`]), and the record with it.
//!
//! Pure; whoever serves the session owns it, and asks before and after each call. Every reply is
//! kept once, so that memory grows with what is sampled and not with how often it is sent.

mod lost;
mod place;

use crate::arguments::say_the_same;
use crate::reply::parse_arguments;
use crate::responses;
use crate::{Block, Dialect, Message, Reply, Request, ResponsesTerms, Role};
use place::Place;
use polar_types::HistoryPolicy;
use serde::Serialize;
use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// What one session remembers.
#[derive(Debug, Default)]
pub struct TurnMemory {
    turns: Vec<Told>,
    /// Turns by the ids of their calls. Some engines count ids anew in each conversation.
    by_call: HashMap<String, Vec<usize>>,
    /// Turns without calls that a client was told of, by the print of their text.
    by_text: HashMap<u64, Vec<usize>>,
    /// Turns by the names of the calls that a client was told of.
    by_names: HashMap<u64, Vec<usize>>,
    /// Turns of which a client was told nothing, by the place that they stand in.
    untold: HashMap<u64, Vec<usize>>,
    /// Edits that are in a record already.
    reported: HashSet<Edit>,
    /// Tools that a harness names in the place of one that it could not call.
    stand_ins: HashSet<String>,
    /// The engine is asked with ids, to which a call may be cut. In messages it would be refused.
    keeps_cut_calls: bool,
}

/// A reply that was told.
#[derive(Debug)]
struct Told {
    /// As sampled, in order.
    blocks: Vec<Block>,
    /// Arguments as the decoder spells them where the client knows a call in another form, by
    /// the call's place among the calls.
    told_as: HashMap<usize, String>,
    /// Places of the calls that the client's dialect has no place for: cut and malformed ones.
    untold_calls: HashSet<usize>,
    place: Place,
    /// How many messages it answers, and what they begin with.
    asked: usize,
    front: u64,
    /// The last turn that was known again in the history it was sampled behind.
    behind: Option<usize>,
}

/// A call's arguments that a harness has changed: its id, and the print of what it says now.
type Edit = (String, u64);

/// What a request's history was, compared with what was sampled.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HistoryReport {
    /// What the engine gets as it was sampled, though the harness sent it otherwise.
    pub restored: Restored,
    /// What the harness has changed, which stays as it says it.
    pub edited: Edited,
    edits: Vec<Edit>,
    /// The last turn that was known again.
    last: Option<usize>,
}

/// How much was put back.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Restored {
    /// Calls whose arguments were spelled otherwise.
    #[serde(skip_serializing_if = "is_zero")]
    pub arguments: u32,
    /// Calls in whose place the harness had put one of its own, or that its dialect has no place for.
    #[serde(skip_serializing_if = "is_zero")]
    pub calls: u32,
    /// Turns whose reasoning was dropped or trimmed.
    #[serde(skip_serializing_if = "is_zero")]
    pub reasoning: u32,
    /// Turns whose text had lost blanks around it.
    #[serde(skip_serializing_if = "is_zero")]
    pub text: u32,
    /// Calls that had other ids than those that were told, or none.
    #[serde(skip_serializing_if = "is_zero")]
    pub ids: u32,
    /// Turns that were left out, because a client was told nothing of them.
    #[serde(skip_serializing_if = "is_zero")]
    pub turns: u32,
}

/// What was changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Edited {
    /// Ids of the calls with another name or other arguments; each edit is listed with the first
    /// call that has it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<String>,
    /// Turns with other reasoning.
    #[serde(skip_serializing_if = "is_zero")]
    pub reasoning: u32,
    /// Turns with another text.
    #[serde(skip_serializing_if = "is_zero")]
    pub text: u32,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// What is kept of a request until it is answered.
#[derive(Debug)]
pub struct Asked {
    dialect: Dialect,
    place: Place,
    asked: usize,
    front: u64,
    behind: Option<usize>,
    edits: Vec<Edit>,
    terms: Option<Arc<ResponsesTerms>>,
}

impl Asked {
    /// Of a request as it goes to the engine.
    pub fn of(request: &Request) -> Self {
        Self {
            dialect: request.dialect,
            asked: request.messages.len(),
            front: lost::front_of(request),
            place: request.messages.iter().fold(Place::default(), Place::behind),
            behind: request.history.last,
            edits: request.history.edits.clone(),
            terms: request.responses.clone(),
        }
    }
}

impl TurnMemory {
    /// Of a harness that puts calls of the tools `stand_ins` in the place of those that it could not
    /// run.
    pub fn new(stand_ins: HashSet<String>) -> Self {
        Self { stand_ins, ..Self::default() }
    }

    /// Puts calls back as well that a client could not be told because they were cut. For engines
    /// that are asked with ids.
    #[must_use]
    pub fn keeping_cut_calls(self, keeps_cut_calls: bool) -> Self {
        Self { keeps_cut_calls, ..self }
    }

    /// Notes the reply to a request. To be called before the client gets to know of its end.
    pub fn remember(&mut self, asked: Asked, reply: &Reply) {
        self.reported.extend(asked.edits);
        let turn = self.turns.len();
        let mut told_as = HashMap::new();
        let blocks: Vec<_> = reply.blocks.iter().map(Block::from).collect();
        for (at, (id, name, arguments)) in calls(&blocks).enumerate() {
            let turns = self.by_call.entry(id.to_owned()).or_default();
            if turns.last() != Some(&turn) {
                turns.push(turn);
            }
            let terms = asked.terms.as_deref();
            if let Some(other) = terms.and_then(|t| responses::respelled(t, name, arguments)) {
                told_as.insert(at, other);
            }
        }
        let untold_calls = untold_calls(asked.dialect, &blocks);
        let Asked { place, behind, asked, front, .. } = asked;
        let told = Told { blocks, told_as, untold_calls, place, asked, front, behind };
        let names: Vec<_> = told.told_calls().map(|(_, _, name, _)| name).collect();
        if names.is_empty() {
            let said = Said::of(&told.blocks);
            self.by_text.entry(print(said.text.trim())).or_default().push(turn);
            if said.is_silent() {
                self.untold.entry(place.whole).or_default().push(turn);
            }
        } else {
            self.by_names.entry(print(names)).or_default().push(turn);
        }
        self.turns.push(told);
    }

    /// Puts back what the model said, where a request's history has lost it.
    pub fn restore(&self, request: &mut Request, policy: HistoryPolicy) {
        let back = match policy {
            HistoryPolicy::AsSent => lost::PutBack::default(),
            HistoryPolicy::Sampled | HistoryPolicy::Template => self.put_back(request),
        };
        let turns = self.turns_of(&request.messages);
        let last = turns.iter().rev().flatten().find(|(_, is_sure)| *is_sure);
        let last = last.map(|(turn, _)| *turn);
        let mut report = HistoryReport { last, ..HistoryReport::default() };
        (report.restored.ids, report.restored.turns) = (back.ids, back.turns);
        let mut given = HashSet::new();
        for (message, turn) in request.messages.iter_mut().zip(turns) {
            let Some((turn, is_sure)) = turn else { continue };
            let told = &self.turns[turn];
            let gives_back = policy != HistoryPolicy::AsSent && is_sure;
            told.restore_calls(message, gives_back.then_some(&self.stand_ins), &mut report);
            // A turn that a harness has taken apart has its reasoning once.
            if gives_back && given.insert(turn) {
                told.restore_rest(message, self.keeps_cut_calls, &mut report);
            }
        }
        report.edits.retain(|edit| !self.reported.contains(edit));
        report.edited.calls = report.edits.iter().map(|(id, _)| id.clone()).collect();
        request.history = report;
    }

    /// The turn that each message is, from the last one on: of turns that say the same in the same
    /// place, as those of agents that were asked the same, it is the one that the next was sampled
    /// behind.
    fn turns_of(&self, messages: &[Message]) -> Vec<Option<(usize, bool)>> {
        let places = messages.iter().scan(Place::default(), |place, message| {
            let before = *place;
            *place = place.behind(message);
            Some(before)
        });
        let places: Vec<Place> = places.collect();
        let (mut found, mut expected) = (HashSet::new(), None);
        let mut turns = vec![None; messages.len()];
        for (at, message) in messages.iter().enumerate().rev() {
            if message.role != Role::Assistant {
                continue;
            }
            let known = expected
                .filter(|turn| !found.contains(turn) && self.is_turn(*turn, message, places[at]))
                .map(|turn| (turn, true))
                .or_else(|| self.recognise(message, places[at], &found));
            if let Some((turn, true)) = known {
                found.insert(turn);
                expected = self.turns[turn].behind;
            }
            turns[at] = known;
        }
        turns
    }

    /// Whether a message says what a turn did, in its place.
    fn is_turn(&self, turn: usize, message: &Message, place: Place) -> bool {
        let told = &self.turns[turn];
        let (sent, said) = (Said::of(&message.blocks), Said::of(&told.blocks));
        told.place.path == place.path
            && told.has_calls_of(&message.blocks).is_some()
            && said.text.trim() == sent.text.trim()
            && told.says_all(&message.blocks, &self.stand_ins)
    }

    /// The turn that a message of the model's is, and whether more speaks for it than an id. One
    /// of text alone is none of those `found` before.
    fn recognise(
        &self,
        message: &Message,
        place: Place,
        found: &HashSet<usize>,
    ) -> Option<(usize, bool)> {
        let sent = Said::of(&message.blocks);
        let mut ids = calls(&message.blocks).map(|(id, ..)| id).peekable();
        if ids.peek().is_none() {
            let turns = self.by_text.get(&print(sent.text.trim()))?;
            let likeness = |turn: usize| {
                let told = Said::of(&self.turns[turn].blocks);
                let says_it = !found.contains(&turn) && told.text.trim() == sent.text.trim();
                // A turn that was cut while it thought: nothing but its place tells it.
                let is_there = !sent.is_silent() || self.turns[turn].place.path == place.path;
                (says_it && is_there).then(|| told.may_have_thought(&sent))
            };
            return Some((self.placed(turns, place, likeness)?, true));
        }
        let turns = ids.find_map(|id| self.by_call.get(id))?;
        let says_it = |turn: usize| self.turns[turn].says_all(&message.blocks, &self.stand_ins);
        if let [only] = turns.as_slice() {
            // The same id may have come from elsewhere, such as an example in the prompt.
            let is_sure = self.turns[*only].place.is_like(place) || says_it(*only);
            return Some((*only, is_sure));
        }
        let likeness = |turn: usize| {
            let told = Said::of(&self.turns[turn].blocks);
            Some((says_it(turn), told.may_have_thought(&sent)))
        };
        let placed = self.placed(turns, place, likeness);
        let sure = placed.or_else(|| turns.iter().rev().copied().find(|turn| says_it(*turn)));
        Some((sure?, true))
    }

    /// Of those turns that stand in a place, or else of those that answer the same message, the
    /// one that is most like what was sent. Agents that were asked the same stand in one place.
    fn placed<L: Ord>(
        &self,
        turns: &[usize],
        place: Place,
        likeness: impl Fn(usize) -> Option<L>,
    ) -> Option<usize> {
        let most_like = |is_there: &dyn Fn(Place) -> bool| {
            let there = turns.iter().filter(|turn| is_there(self.turns[**turn].place));
            // Of equals the latest.
            let alike = there.filter_map(|turn| Some((likeness(*turn)?, *turn)));
            alike.max_by(|(one, _), (other, _)| one.cmp(other)).map(|(_, turn)| turn)
        };
        most_like(&|at| at.whole == place.whole)
            .or_else(|| most_like(&|at| at.path == place.path))
            .or_else(|| most_like(&|at| at.before == place.before))
    }
}

impl Told {
    /// Place, id, name and arguments of each call that a client was told of.
    fn told_calls(&self) -> impl Iterator<Item = (usize, &str, &str, &str)> {
        let calls = calls(&self.blocks).enumerate();
        let told = calls.filter(|(at, _)| !self.untold_calls.contains(at));
        told.map(|(at, (id, name, arguments))| (at, id, name, arguments))
    }

    /// Whether calls that were sent are those of this turn: all, or those that were told.
    fn has_calls_of(&self, sent: &[Block]) -> Option<Has> {
        let sent = || calls(sent).map(|(id, ..)| id);
        if sent().eq(calls(&self.blocks).map(|(id, ..)| id)) {
            return Some(Has::All);
        }
        sent().eq(self.told_calls().map(|(_, id, ..)| id)).then_some(Has::Told)
    }

    /// Place among the calls of the one that has an id, of those that share it the `nth`. A
    /// model may write an id twice.
    fn place_of(&self, id: &str, nth: usize) -> Option<usize> {
        let mut places = calls(&self.blocks).enumerate().filter(|(_, call)| call.0 == id);
        places.nth(nth).map(|(at, _)| at)
    }

    /// Whether the call at a place says that.
    fn says(&self, at: usize, name: &str, arguments: &str) -> bool {
        let told_as = self.told_as.get(&at).is_some_and(|told| told == arguments);
        calls(&self.blocks).nth(at).is_some_and(|(_, sampled_name, sampled)| {
            sampled_name == name && (told_as || say_the_same(sampled, arguments))
        })
    }

    /// The call of this turn that a sent one is, of those that share its id the next: its place,
    /// name and arguments. `seen` counts those before it.
    fn next_of_id(
        &self,
        id: &str,
        seen: &mut HashMap<String, usize>,
    ) -> Option<(usize, &str, &str)> {
        let nth = seen.entry(id.to_owned()).or_default();
        let at = self.place_of(id, *nth);
        *nth += 1;
        let at = at?;
        calls(&self.blocks).nth(at).map(|(_, name, arguments)| (at, name, arguments))
    }

    /// Whether calls that were sent say what those of this turn did, or stand in for them.
    fn says_all(&self, sent: &[Block], stand_ins: &HashSet<String>) -> bool {
        let mut seen = HashMap::new();
        calls(sent).all(|(id, name, arguments)| {
            let sampled = self.next_of_id(id, &mut seen);
            sampled
                .is_some_and(|(at, ..)| stand_ins.contains(name) || self.says(at, name, arguments))
        })
    }

    /// Gives calls their spelling back, and those in whose place the harness has put a stand-in all
    /// that was sampled.
    fn restore_calls(
        &self,
        message: &mut Message,
        stand_ins: Option<&HashSet<String>>,
        report: &mut HistoryReport,
    ) {
        let mut seen = HashMap::new();
        for block in &mut message.blocks {
            let Block::ToolCall { id, name, arguments } = block else { continue };
            let Some((at, sampled_name, sampled)) = self.next_of_id(id, &mut seen) else {
                continue;
            };
            if sampled_name != name && stand_ins.is_some_and(|tools| tools.contains(name)) {
                sampled_name.clone_into(name);
                sampled.clone_into(arguments);
                report.restored.calls += 1;
                continue;
            }
            if !self.says(at, name, arguments) {
                report.edits.push((id.clone(), print((name, arguments))));
                continue;
            }
            // Engines want JSON: a call without arguments keeps the object.
            let nothing = sampled.trim().is_empty() && arguments == "{}";
            if sampled != arguments && !nothing {
                sampled.clone_into(arguments);
                report.restored.arguments += 1;
            }
        }
    }

    fn restore_rest(
        &self,
        message: &mut Message,
        keeps_cut_calls: bool,
        report: &mut HistoryReport,
    ) {
        let (sent, sampled) = (Said::of(&message.blocks), Said::of(&self.blocks));
        let Some(has) = self.has_calls_of(&message.blocks).filter(|_| !sent.more) else { return };
        let text = Change::between(&sampled.text, &sent.text);
        let reasoning = sampled.change_of_reasoning(&sent);
        report.edited.text += u32::from(text == Change::Other);
        report.edited.reasoning += u32::from(reasoning == Change::Other);
        match (reasoning, text) {
            (Change::Lost, Change::Other) => {
                message.blocks.retain(|block| !matches!(block, Block::Reasoning { .. }));
                let text = sampled.reasoning;
                message.blocks.insert(0, Block::Reasoning { text, signature: None });
            }
            _ if has == Has::Told && keeps_cut_calls && text != Change::Other => {
                self.replace(message, true);
                report.restored.calls += self.untold_calls.len() as u32;
            }
            (Change::Other, _) | (Change::None, Change::None | Change::Other) => return,
            (Change::Lost, _) | (_, Change::Lost) => self.replace(message, false),
        }
        report.restored.reasoning += u32::from(reasoning == Change::Lost);
        report.restored.text += u32::from(text == Change::Lost);
    }

    /// All as it was sampled, but for the calls, which are restored each by itself; with those that
    /// the client was not told of, or without.
    fn replace(&self, message: &mut Message, with_untold: bool) {
        let mut sent: Vec<_> = message
            .blocks
            .drain(..)
            .filter(|block| matches!(block, Block::ToolCall { .. }))
            .rev()
            .collect();
        let mut place = 0;
        let mut restored = |block: &Block| {
            if !matches!(block, Block::ToolCall { .. }) {
                return Some(block.clone());
            }
            let is_untold = with_untold && self.untold_calls.contains(&place);
            place += 1;
            if is_untold { Some(block.clone()) } else { sent.pop() }
        };
        message.blocks = self.blocks.iter().filter_map(&mut restored).collect();
    }
}

/// Which calls of a turn were sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Has {
    All,
    /// All but those that the client was not told of.
    Told,
}

/// The calls that a dialect has no place for: Google's has none for arguments that are no object. The
/// last one without any may have been told or not, by whether the reply's end cut it.
fn untold_calls(dialect: Dialect, blocks: &[Block]) -> HashSet<usize> {
    if dialect != Dialect::Google {
        return HashSet::new();
    }
    let last = calls(blocks).count().saturating_sub(1);
    let is_untold = |(at, (_, _, arguments)): &(usize, (&str, &str, &str))| {
        parse_arguments(arguments).is_none() || (*at == last && arguments.trim().is_empty())
    };
    calls(blocks).enumerate().filter(is_untold).map(|(at, _)| at).collect()
}

/// How a text came back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    None,
    /// Less of it than was sampled, or other blanks around it.
    Lost,
    Other,
}

impl Change {
    fn between(sampled: &str, sent: &str) -> Self {
        match sampled == sent {
            true => Self::None,
            false if sampled.trim() == sent.trim() => Self::Lost,
            false => Self::Other,
        }
    }
}

/// What is said in a turn beside its calls, each kind as one.
#[derive(Default)]
struct Said {
    reasoning: String,
    text: String,
    /// Whether there is more that is no part of what a model says.
    more: bool,
}

impl Said {
    fn of(blocks: &[Block]) -> Self {
        let mut said = Self::default();
        for block in blocks {
            match block {
                Block::Text(text) => said.text.push_str(text),
                Block::Reasoning { text, .. } => said.reasoning.push_str(text),
                Block::ToolCall { .. } => {}
                Block::ToolResult { .. } | Block::Image(_) | Block::Other(_) => said.more = true,
            }
        }
        said
    }

    fn is_silent(&self) -> bool {
        self.text.trim().is_empty()
    }

    /// Dropped, trimmed, or left with its end, as OpenAI's JavaScript client does, which puts
    /// each streamed piece of a field that it does not know in the place of the last one.
    fn change_of_reasoning(&self, sent: &Self) -> Change {
        match Change::between(&self.reasoning, &sent.reasoning) {
            Change::Other if self.reasoning.trim_end().ends_with(sent.reasoning.trim()) => {
                Change::Lost
            }
            other => other,
        }
    }

    /// Whether what was sent may have this reasoning.
    fn may_have_thought(&self, sent: &Self) -> bool {
        self.change_of_reasoning(sent) != Change::Other
    }
}

/// Id, name and arguments of each call.
fn calls(blocks: &[Block]) -> impl Iterator<Item = (&str, &str, &str)> {
    blocks.iter().filter_map(|block| match block {
        Block::ToolCall { id, name, arguments } => {
            Some((id.as_str(), name.as_str(), arguments.as_str()))
        }
        _ => None,
    })
}

fn print(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
