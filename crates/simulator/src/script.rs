//! A reply worked out before its first token is "sampled": ids, the text each id shows,
//! and how it ends.
//!
//! Pure: stop conditions, token limits and held-back text are decided here the way
//! vLLM's output processor decides them; time plays no part.

use crate::vocabulary::Vocabulary;
use crate::weights::{Context, mix};
use polar_tokens::detokenizer::IncrementalText;
use serde_json::Value;

/// What may end a reply early, as the request has it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Limits {
    /// Most tokens; already within the context window.
    pub max_tokens: usize,
    /// Fewest tokens before any stop counts.
    pub min_tokens: usize,
    /// Stop strings.
    pub stop: Vec<String>,
    /// Ids that end the reply.
    pub stop_token_ids: Vec<u32>,
    /// Goes on after the end of the turn.
    pub ignore_eos: bool,
    /// Text shows what ended it.
    pub include_stop: bool,
    /// Text leaves ChatML marks out.
    pub skip_special: bool,
}

/// A whole reply.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Script {
    /// Sampled ids, the one that ended it included.
    pub ids: Vec<u32>,
    /// Text that becomes visible with each id.
    pub texts: Vec<String>,
    /// `stop` or `length`.
    pub finish: &'static str,
    /// The stop string or stop id that matched, else null.
    pub stop_reason: Value,
}

impl Script {
    /// Plays `wanted`, ids without the end of the turn, within `limits`. `cut` ends it
    /// as by the token limit.
    pub(crate) fn play(
        vocabulary: &Vocabulary,
        context: Context,
        wanted: &[u32],
        cut: bool,
        limits: &Limits,
    ) -> Self {
        let mut player = Player::new(vocabulary, limits);
        let mut wanted = wanted.iter().copied();
        let mut context = context;
        loop {
            let place = player.script.ids.len();
            if place >= limits.max_tokens {
                return player.end("length", Value::Null);
            }
            let id = match wanted.next() {
                Some(id) => id,
                None if cut => return player.end("length", Value::Null),
                None if limits.ignore_eos || place < limits.min_tokens => {
                    filler(context, vocabulary)
                }
                None => vocabulary.end_of_turn(),
            };
            context = context.then(id);
            if let Some((finish, reason)) = player.sample(id) {
                return player.end(finish, reason);
            }
        }
    }
}

/// A token for a model that has nothing to say but must go on.
fn filler(context: Context, vocabulary: &Vocabulary) -> u32 {
    let ordinary = u64::from(vocabulary.first_added()).max(1);
    let draw = mix(context.distribution("filler", vocabulary.size()).of(0).value.to_bits().into());
    u32::try_from(draw % ordinary).unwrap_or(0)
}

struct Player<'a> {
    vocabulary: &'a Vocabulary,
    limits: &'a Limits,
    /// Characters held back while a stop string may still be coming.
    held_chars: usize,
    decoder: IncrementalText,
    text: String,
    shown: usize,
    script: Script,
}

impl<'a> Player<'a> {
    fn new(vocabulary: &'a Vocabulary, limits: &'a Limits) -> Self {
        let longest = limits.stop.iter().map(|stop| stop.chars().count()).max().unwrap_or(0);
        let held_chars = if limits.include_stop { 0 } else { longest.saturating_sub(1) };
        let script =
            Script { ids: Vec::new(), texts: Vec::new(), finish: "stop", stop_reason: Value::Null };
        let decoder = IncrementalText::default();
        Self { vocabulary, limits, held_chars, decoder, text: String::new(), shown: 0, script }
    }

    /// Takes one id; says so when it ends the reply.
    fn sample(&mut self, id: u32) -> Option<(&'static str, Value)> {
        self.script.ids.push(id);
        let enough = self.script.ids.len() > self.limits.min_tokens;
        let ends = self.vocabulary.ends_generation(id) && !self.limits.ignore_eos;
        let stops = self.limits.stop_token_ids.contains(&id);
        if enough && (ends || stops) {
            if self.limits.include_stop {
                self.decode(id);
            }
            self.script.texts.push(String::new());
            let reason = if ends { Value::Null } else { Value::from(id) };
            return Some(("stop", reason));
        }
        let before = self.text.len();
        self.decode(id);
        let matched = if enough { self.stop_string(before) } else { None };
        if let Some((stop, end)) = matched {
            let end = if self.limits.include_stop { end + stop.len() } else { end };
            self.text.truncate(end);
            self.script.texts.push(String::new());
            return Some(("stop", Value::from(stop)));
        }
        let visible = self.visible();
        self.script.texts.push(visible);
        None
    }

    fn decode(&mut self, id: u32) {
        if self.limits.skip_special && self.vocabulary.is_special(id) {
            return;
        }
        let bytes = self.vocabulary.bytes(id);
        let text = self.decoder.push(bytes);
        self.text.push_str(&text);
    }

    /// The stop string that the text from `before` on completes, and where it begins.
    fn stop_string(&self, before: usize) -> Option<(&'a str, usize)> {
        self.limits.stop.iter().filter(|stop| !stop.is_empty()).find_map(|stop| {
            let mut from = before.saturating_sub(stop.len() - 1);
            while !self.text.is_char_boundary(from) {
                from -= 1;
            }
            self.text[from..].find(stop.as_str()).map(|at| (stop.as_str(), from + at))
        })
    }

    fn visible(&mut self) -> String {
        let end = match self.held_chars {
            0 => self.text.len(),
            held => self.text.char_indices().rev().nth(held - 1).map_or(0, |(at, _)| at),
        };
        let end = end.max(self.shown);
        let text = self.text[self.shown..end].to_owned();
        self.shown = end;
        text
    }

    fn end(mut self, finish: &'static str, stop_reason: Value) -> Script {
        // Whatever was held back shows with the last token.
        let shown = self.shown.min(self.text.len());
        if let Some(last) = self.script.texts.last_mut() {
            last.push_str(&self.text[shown..]);
        }
        Script { finish, stop_reason, ..self.script }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn play(text: &str, limits: Limits) -> (Script, Vec<u32>) {
        let vocabulary = Vocabulary::load().unwrap();
        let ids = vocabulary.encode(text).unwrap();
        (Script::play(&vocabulary, Context::empty(), &ids, false, &limits), ids)
    }

    fn roomy() -> Limits {
        Limits { max_tokens: 1000, skip_special: true, ..Limits::default() }
    }

    #[test]
    fn a_reply_ends_with_the_end_of_the_turn() {
        let (script, mut ids) = play("All done, grüß 🎉.", roomy());
        ids.push(Vocabulary::load().unwrap().end_of_turn());
        assert_eq!(script.ids, ids);
        assert_eq!(script.texts.concat(), "All done, grüß 🎉.");
        assert_eq!((script.finish, &script.stop_reason), ("stop", &Value::Null));
        assert_eq!(script.texts.len(), script.ids.len());
    }

    #[test]
    fn limits_cut_and_stretch() {
        let (script, ids) = play("one two three four five", Limits { max_tokens: 3, ..roomy() });
        assert_eq!((script.finish, script.ids.as_slice()), ("length", &ids[..3]));
        let limits = Limits { max_tokens: 40, ignore_eos: true, ..roomy() };
        let (script, ids) = play("hello", limits);
        assert_eq!((script.finish, script.ids.len()), ("length", 40));
        assert!(script.ids.starts_with(&ids));
        let (script, _) = play("hello", Limits { min_tokens: 20, ..roomy() });
        assert_eq!((script.finish, script.ids.len()), ("stop", 21));
    }

    #[test]
    fn stop_strings_are_in_ids_and_not_in_text() {
        let limits = Limits { stop: vec!["never".into(), "e f".into()], ..roomy() };
        let (script, ids) = play("one two three four five", limits.clone());
        assert_eq!(script.texts.concat(), "one two thre");
        assert_eq!(script.stop_reason, "e f");
        assert_eq!(script.finish, "stop");
        assert!(ids.starts_with(&script.ids) && ids.len() > script.ids.len());
        // Nothing that might have been the beginning of a stop string was shown early.
        let mut seen = String::new();
        for text in &script.texts {
            seen.push_str(text);
            assert!("one two thre".starts_with(&seen));
        }
        let (script, _) = play("one two three four five", Limits { include_stop: true, ..limits });
        assert_eq!(script.texts.concat(), "one two three f");
    }

    #[test]
    fn stop_ids_end_without_text() {
        let vocabulary = Vocabulary::load().unwrap();
        let id = vocabulary.encode(" three").unwrap()[0];
        let (script, _) = play("one two three", Limits { stop_token_ids: vec![id], ..roomy() });
        assert_eq!((script.ids.last(), &script.stop_reason), (Some(&id), &Value::from(id)));
        assert_eq!(script.texts.concat(), "one two");
    }
}
