//! What a history has lost before any turn in it can be known again: the ids of calls, which some
//! clients make up anew or drop, and turns of which a client was told nothing that it could keep.

use super::{Place, Told, TurnMemory, calls, print};
use crate::{Block, Message, Request, Role};
use std::collections::HashMap;

/// What of a request's head tells conversations apart that were asked the same: an agent's own from
/// those of its helpers.
pub(super) fn front_of(request: &Request) -> u64 {
    let system = request.messages.iter().filter(|message| is_system(message.role));
    let system: Vec<_> = system.map(|message| format!("{:?}", message.blocks)).collect();
    let tools: Vec<_> = request.tools.iter().map(|tool| tool.name.as_str()).collect();
    print((system, tools))
}

/// What was put back.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PutBack {
    /// Calls that got their ids.
    pub(super) ids: u32,
    /// Turns that were left out.
    pub(super) turns: u32,
}

impl TurnMemory {
    /// Gives calls and their results the ids that were told, and puts turns back of which nothing was
    /// told.
    pub(super) fn put_back(&self, request: &mut Request) -> PutBack {
        let mut back = PutBack::default();
        if self.turns.is_empty() {
            return back;
        }
        let front = front_of(request);
        let (mut place, mut ids) = (Place::default(), HashMap::new());
        let sent = std::mem::take(&mut request.messages);
        request.messages.reserve(sent.len());
        for mut message in sent {
            match message.role {
                Role::Assistant => back.ids += self.give_ids(&mut message, place, &mut ids),
                Role::User | Role::Tool => {
                    answer(&mut message, &ids);
                    let asked = &mut request.messages;
                    if let Some(turn) = self.untold_turn(asked, place, front) {
                        asked.push(turn.message(self.keeps_cut_calls));
                        back.turns += 1;
                    }
                }
                Role::System | Role::Developer => {}
            }
            place = place.behind(&message);
            request.messages.push(message);
        }
        back
    }

    /// Gives the calls of a turn their ids, if they have others that say nothing. `ids` gets to know
    /// what they stand for in the results behind them.
    fn give_ids(
        &self,
        message: &mut Message,
        place: Place,
        ids: &mut HashMap<String, String>,
    ) -> u32 {
        let turn = self.turn_with_other_ids(message, place);
        let Some(turn) = turn else {
            calls(&message.blocks).for_each(|(id, ..)| drop(ids.remove(id)));
            return 0;
        };
        let told: Vec<String> = turn.told_calls().map(|(_, id, ..)| id.to_owned()).collect();
        let sent = message.blocks.iter_mut().filter_map(|block| match block {
            Block::ToolCall { id, .. } => Some(id),
            _ => None,
        });
        let mut given = 0;
        for (id, told) in sent.zip(told) {
            ids.insert(std::mem::replace(id, told.clone()), told);
            given += 1;
        }
        given
    }

    /// The turn whose calls these are, under ids that nobody was told.
    fn turn_with_other_ids(&self, message: &Message, place: Place) -> Option<&Told> {
        let mut names = Vec::new();
        for (id, name, _) in calls(&message.blocks) {
            if self.by_call.contains_key(id) {
                return None;
            }
            names.push(name);
        }
        let turns = self.by_names.get(&print(names))?;
        let sent = super::Said::of(&message.blocks);
        let likeness = |turn: usize| {
            let told = &self.turns[turn];
            let said = super::Said::of(&told.blocks);
            let same = told
                .told_calls()
                .zip(calls(&message.blocks))
                .all(|((at, ..), (_, name, arguments))| told.says(at, name, arguments));
            (same && said.text.trim() == sent.text.trim()).then(|| said.may_have_thought(&sent))
        };
        self.placed(turns, place, likeness).map(|turn| &self.turns[turn])
    }

    /// The turn that stood behind what was asked so far, if its client was told nothing of it.
    fn untold_turn(&self, asked: &[Message], place: Place, front: u64) -> Option<&Told> {
        let last = asked.iter().rev().find(|message| !is_system(message.role))?;
        let turns = self.untold.get(&place.whole).filter(|_| last.role != Role::Assistant)?;
        let is_there = |turn: &&Told| turn.front == front && turn.asked == asked.len();
        turns.iter().rev().map(|turn| &self.turns[*turn]).find(is_there)
    }
}

impl Told {
    /// The turn as a message, with the calls that nobody was told of or without.
    fn message(&self, with_untold: bool) -> Message {
        let mut message = Message::new(Role::Assistant, Vec::new());
        self.replace(&mut message, with_untold);
        message
    }
}

fn is_system(role: Role) -> bool {
    matches!(role, Role::System | Role::Developer)
}

/// Results name their calls by the ids that these were given.
fn answer(message: &mut Message, ids: &HashMap<String, String>) {
    for block in &mut message.blocks {
        if let Block::ToolResult { call_id, .. } = block
            && let Some(told) = ids.get(call_id.as_str())
        {
            told.clone_into(call_id);
        }
    }
}
