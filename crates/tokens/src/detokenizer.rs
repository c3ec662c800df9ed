//! Ids to text as they are sampled.
//!
//! Text is for the harness and for parsers; nobody makes ids of it again. A character whose bytes
//! are not complete is held back, and so is what may be the beginning of a stop string.

use crate::tokenizer::Tokenizer;
use std::sync::Arc;

/// The text of one reply.
#[derive(Debug)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    /// Special tokens are text too.
    keep_special: bool,
    stop_ids: Vec<u32>,
    text: IncrementalText,
    stops: StopStrings,
}

impl Detokenizer {
    /// For a reply that ends at one of `stop_ids`, which is no text, or where a text of `stops`
    /// is complete, which is none either.
    pub fn new(
        tokenizer: Arc<Tokenizer>,
        keep_special: bool,
        stop_ids: Vec<u32>,
        stops: Vec<String>,
    ) -> Self {
        let stops = StopStrings::new(stops);
        Self { tokenizer, keep_special, stop_ids, text: IncrementalText::default(), stops }
    }

    /// The text that these ids complete.
    pub fn push(&mut self, ids: &[u32]) -> String {
        let mut text = String::new();
        for id in ids {
            let is_left_out = self.stop_ids.contains(id)
                || (!self.keep_special && self.tokenizer.is_special(*id));
            if !is_left_out {
                text.push_str(&self.text.push(self.tokenizer.bytes(*id)));
            }
        }
        self.stops.push(&text)
    }

    /// What was held back of a reply that is complete.
    pub fn finish(&mut self) -> String {
        let rest = self.text.finish();
        let mut text = self.stops.push(&rest);
        text.push_str(&self.stops.finish());
        text
    }
}

/// Turns bytes of tokens into text as they come; a character that is not complete yet is held
/// back. What is no text is `U+FFFD`.
#[derive(Debug, Clone, Default)]
pub struct IncrementalText {
    pending: Vec<u8>,
}

impl IncrementalText {
    /// The text that these bytes complete.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let mut text = String::new();
        loop {
            match std::str::from_utf8(&self.pending) {
                Ok(valid) => {
                    text.push_str(valid);
                    self.pending.clear();
                    return text;
                }
                Err(error) => {
                    let valid = error.valid_up_to();
                    text.push_str(&String::from_utf8_lossy(&self.pending[..valid]));
                    let Some(bad) = error.error_len() else {
                        self.pending.drain(..valid);
                        return text;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    self.pending.drain(..valid + bad);
                }
            }
        }
    }

    /// No more bytes come: what is left of a character.
    pub fn finish(&mut self) -> String {
        let rest = std::mem::take(&mut self.pending);
        String::from_utf8_lossy(&rest).into_owned()
    }
}

/// Cuts a text off before the stop string that is complete first.
#[derive(Debug, Default)]
struct StopStrings {
    stops: Vec<String>,
    held: String,
    stopped: bool,
}

impl StopStrings {
    fn new(stops: Vec<String>) -> Self {
        let stops = stops.into_iter().filter(|stop| !stop.is_empty()).collect();
        Self { stops, ..Self::default() }
    }

    fn push(&mut self, text: &str) -> String {
        if self.stopped {
            return String::new();
        }
        if self.stops.is_empty() {
            return text.to_owned();
        }
        self.held.push_str(text);
        if let Some(start) = first_stop(&self.held, &self.stops) {
            self.stopped = true;
            self.held.truncate(start);
            return std::mem::take(&mut self.held);
        }
        let kept = self.longest_beginning();
        let rest = self.held.split_off(self.held.len() - kept);
        std::mem::replace(&mut self.held, rest)
    }

    /// Bytes at the end of what is held that may become a stop string.
    fn longest_beginning(&self) -> usize {
        let beginning = |stop: &String| {
            let longest = self.held.len().min(stop.len() - 1);
            let fits = |length: &usize| {
                stop.is_char_boundary(*length) && self.held.ends_with(&stop[..*length])
            };
            (1..=longest).rev().find(fits).unwrap_or(0)
        };
        self.stops.iter().map(beginning).max().unwrap_or(0)
    }

    fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Where the stop string begins that is complete first, which is the one that an engine stops at.
fn first_stop(text: &str, stops: &[String]) -> Option<usize> {
    let found = stops.iter().filter_map(|stop| text.find(stop).map(|at| (at + stop.len(), at)));
    found.min().map(|(_, start)| start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bytes_become_text_when_their_character_is_complete() {
        let mut text = IncrementalText::default();
        assert_eq!(text.push("€".as_bytes().split_at(1).0), "");
        assert_eq!(text.push("€x".as_bytes().split_at(1).1), "€x");
        assert_eq!(text.push(&[0xff, b'a', 0xe2]), "\u{fffd}a");
        assert_eq!(text.finish(), "\u{fffd}");
        assert_eq!(text.finish(), "");
    }

    proptest! {
        #[test]
        fn a_text_is_cut_before_the_stop_string_that_is_complete_first(
            text in "[ab€]{0,12}",
            stops in prop::collection::vec("[ab€]{1,3}", 0..3),
            cuts in prop::collection::vec(1..4_usize, 0..12),
        ) {
            let ends = text.char_indices().map(|(at, found)| at + found.len_utf8());
            let first = ends
                .filter_map(|end| {
                    let complete = stops.iter().filter(|stop| text[..end].ends_with(*stop));
                    complete.map(|stop| end - stop.len()).min()
                })
                .next();
            let mut filter = StopStrings::new(stops);
            let characters: Vec<char> = text.chars().collect();
            let (mut given, mut at) = (String::new(), 0_usize);
            for cut in cuts.into_iter().chain([usize::MAX]) {
                let end = at.saturating_add(cut).min(characters.len());
                given += &filter.push(&characters[at..end].iter().collect::<String>());
                at = end;
            }
            given += &filter.finish();
            prop_assert_eq!(given, &text[..first.unwrap_or(text.len())]);
        }
    }
}
