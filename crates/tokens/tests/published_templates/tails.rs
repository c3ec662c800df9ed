//! What is put behind a turn of the model is what the template itself puts there.
//!
//! Every conversation is cut behind each turn of the model, and the rest is put behind that turn.

use crate::{Case, Expected, FAMILIES, File, Template, compile, described};
use polar_tokens::prompt::{
    Basis, Conversation, PromptError, PromptMemory, PromptRenderer, TurnEnd,
};
use polar_tokens::template::{CivilDateTime, Preparation, RenderInput};
use polar_tokens::tokenizer::Tokenizer;
use polar_types::HistoryPolicy;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Tokens that end a turn of some model, beside its end of text.
const STOPS: [&str; 33] = [
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|user|>",
    "<|observation|>",
    "<|return|>",
    "<|call|>",
    "<|end|>",
    "<｜end▁of▁sentence｜>",
    "</s>",
    "<end_of_turn>",
    "<turn|>",
    "<|tool_response>",
    "[e~[",
    "<|END_OF_TURN_TOKEN|>",
    "<|assistant_end|>",
    "<seed:eos>",
    "<|role_end|>",
    "<|message_sep|>",
    "<|tools_suffix|>",
    "<|eos|>",
    "<SPECIAL_12>",
    "<|eom|>",
    "<|flush|>",
    "<|eot|>",
    "<|end_of_msg|>",
    "<sep>",
    "<|end_of_sentence|>",
    "<end_of_sentence>",
    "</assistant>",
    "<｜hy_eos:opensource｜>",
];

/// Marks that are not written like those of other models.
const ODD_MARKS: [&str; 11] = [
    "]~b]",
    "]~!b[",
    "[e~[",
    "<s>",
    "</s>",
    "<begin_of_document>",
    "<beginning_of_sentence>",
    "〈|EOS|〉",
    "<assistant>",
    "<user>",
    "<system>",
];

/// Where the model of a template samples on behind such a mark.
const NO_STOPS: [(&str, &str); 4] = [
    ("openai-gpt-oss-120b", "<|end|>"),
    ("llm-jp-llm-jp-4.1-8b-thinking", "<|end|>"),
    ("microsoft-Phi-3.5-mini-instruct", "<|user|>"),
    ("unsloth-Apriel-1.5", "<|user|>"),
];

/// In which conversations of a template a tail is another than the template's.
#[derive(Debug, Clone, Copy)]
enum Where {
    Everywhere,
    /// Behind turns with calls.
    Calls,
    Conversation(&'static str),
}

/// What is not as the template has it, and why. No family that must be there is among them.
const EXCEPTIONS: [(&str, Where, &str); 9] = [
    ("llama-cpp-rwkv-world", Where::Everywhere, "no end mark: it has no special tokens at all"),
    (
        "Apriel-1.6-15b-Thinker-fixed",
        Where::Calls,
        "no end mark: ids of calls are written once something follows, between turn and mark",
    ),
    ("unsloth-Apriel-1.5", Where::Calls, "no end mark, for the same reason"),
    (
        "google-gemma-4-31B-it",
        Where::Conversation("reasoning in the text, with a call"),
        "no end mark: the turn's text is written behind its calls, and behind their results later",
    ),
    (
        "GigaChat3-10B-A1.8B",
        Where::Calls,
        "text and call of a turn are two turns with a mark each, of which the first is empty here",
    ),
    (
        "muse-glimmer",
        Where::Everywhere,
        "reasoning, text and each call of a turn are turns with a mark each",
    ),
    (
        "Apriel-1.6-15b-Thinker-fixed",
        Where::Conversation("two of the assistant"),
        "behind a turn of the model no other is opened: the prompt has no mark between the two",
    ),
    ("tencent-Hy3", Where::Conversation("two of the assistant"), "the same"),
    (
        "upstage-Solar-Open-100B",
        Where::Conversation("reasoning and calls"),
        "results are told by the ids of calls, of which that conversation has two alike",
    ),
];

#[test]
fn promise_2_what_is_put_behind_a_turn_is_what_the_template_puts_there() {
    let file = File::read();
    assert!(EXCEPTIONS.iter().all(|(template, ..)| !FAMILIES.contains(template)));
    let mut unseen = EXCEPTIONS.to_vec();
    let mut unlike = Vec::new();
    for template in &file.templates {
        let Ok(compiled) = compile(template, &file.specials) else { continue };
        let (tokenizer, stops) = tokenizer(template, &file);
        let renderer =
            PromptRenderer::new(compiled, Arc::new(tokenizer), Preparation::Transformers, stops);
        let mut counts = BTreeMap::new();
        for (case, expected) in file.cases.iter().zip(&template.expected) {
            let (Expected::Text { text }, true) = (expected, case.add_generation_prompt) else {
                continue;
            };
            let cut = Cut { renderer: &renderer, case, whole: text, now: file.now };
            for from in cut.ends_of_turns() {
                let fault = match cut.check(from) {
                    Ok(held) => {
                        *counts.entry(held).or_insert(0) += 1;
                        continue;
                    }
                    Err(fault) => fault,
                };
                let has_calls = case.messages[from - 1]["tool_calls"].is_array();
                let is_listed = |(name, place, _): &(&str, Where, &str)| {
                    *name == template.name
                        && match place {
                            Where::Everywhere => true,
                            Where::Calls => has_calls,
                            Where::Conversation(name) => *name == case.name,
                        }
                };
                match EXCEPTIONS.iter().any(is_listed) {
                    true => unseen.retain(|exception| !is_listed(exception)),
                    false => unlike.push(format!(
                        "{} / {} at {from}: {fault}",
                        template.name,
                        described(case)
                    )),
                }
            }
        }
        println!("{}: {counts:?}", template.name);
        let exact = counts.get(&Held::Exact).copied().unwrap_or(0);
        let is_family = FAMILIES.contains(&&*template.name);
        assert!(!is_family || exact > 0, "{} only adds nowhere", template.name);
    }
    assert!(unlike.is_empty(), "{} unlike:\n{}", unlike.len(), unlike.join("\n"));
    assert!(unseen.is_empty(), "no such difference any more: {unseen:?}");
}

/// A conversation that is cut behind a turn of the model.
struct Cut<'a> {
    renderer: &'a PromptRenderer,
    case: &'a Case,
    /// The whole, as `transformers` renders it.
    whole: &'a str,
    now: CivilDateTime,
}

impl Cut<'_> {
    /// The numbers of messages up to the ends of turns of the model that something follows.
    fn ends_of_turns(&self) -> impl Iterator<Item = usize> {
        let messages = &self.case.messages;
        let stops = self.stops();
        let is_turn = |message: &Value| message["role"] == "assistant";
        // A model does not say what would have stopped it.
        let says_stop = move |turn: &Value| {
            let turn = turn.to_string();
            stops.iter().any(|stop| turn.contains(stop))
        };
        (1..messages.len()).filter(move |from| {
            let turn = &messages[from - 1];
            is_turn(turn) && !is_turn(&messages[*from]) && !says_stop(turn)
        })
    }

    /// How the tail was held to the template.
    fn check(&self, from: usize) -> Result<Held, String> {
        let messages = &self.case.messages;
        let prompt = self.text(&messages[..from - 1], true);
        let turn = self.text(&messages[..from], false);
        let (Ok(prompt), Ok(turn)) = (prompt, turn) else { return Ok(Held::Refused) };
        let shared = common_length(&prompt, &turn);
        // What the template writes of the turn, and the mark behind it.
        let stops = self.stops();
        let found = stops.iter().filter_map(|stop| Some((turn[shared..].find(*stop)?, *stop)));
        let mark = found.min();
        let end = mark.map_or(turn.len(), |(at, _)| shared + at);
        let said = &turn[shared..end];
        let only_adds = shared == prompt.len() && self.whole.starts_with(&turn[..end]);
        let in_whole = only_adds.then(|| self.mark_at(&self.whole[end..])).flatten();
        let expected = in_whole.map(|mark| &self.whole[end + mark.len()..]);

        let half: String = said.chars().take(said.chars().count() / 2).collect();
        let (kind, tail) = self.tail(from, &half)?;
        let closed_by = self.mark_at(&tail).ok_or(format!("not closed: {tail:?}"))?;
        if kind != TurnEnd::Closed {
            return Err(format!("{kind:?}, but cut off"));
        }
        let held = self.hold(from, expected, &tail[closed_by.len()..])?;
        let mark = mark.map_or(closed_by, |(_, mark)| mark);
        let (kind, tail) = self.tail(from, &format!("{said}{mark}"))?;
        match kind {
            TurnEnd::Marked if mark == closed_by => {}
            TurnEnd::OtherMark if mark != closed_by => {}
            _ => return Err(format!("{mark} and {closed_by}, but {kind:?}")),
        }
        self.hold(from, expected, &tail)?;
        Ok(held)
    }

    /// Holds what stands behind a turn's mark to the whole.
    fn hold(&self, from: usize, expected: Option<&str>, tail: &str) -> Result<Held, String> {
        if let Some(expected) = expected {
            return match tail == expected {
                true => Ok(Held::Exact),
                false => Err(first_difference(expected, tail)),
            };
        }
        let turn = &self.case.messages[from - 1];
        let Some(before) = self.whole.strip_suffix(tail) else {
            return Err(format!("the whole {:?} does not end in {tail:?}", self.whole));
        };
        let is_empty = turn["content"].as_str().is_none_or(str::is_empty);
        let is_written = !is_empty || turn["tool_calls"].is_array();
        if is_written && !self.marks().any(|mark| before.ends_with(mark)) {
            return Err(format!("no mark before {tail:?}"));
        }
        // What follows is in the tail, unless the template writes it before the conversation.
        let next = self.case.messages[from..].iter().filter(|next| next["role"] != "system");
        let missing = next
            .filter_map(|next| next["content"].as_str())
            .map(str::trim)
            .find(|content| self.whole.contains(content) && !tail.contains(content));
        match missing {
            Some(content) => Err(format!("{content:?} is not all in {tail:?}")),
            None => Ok(Held::End),
        }
    }

    /// How a turn of which `sampled` was sampled ended, and what is put behind it.
    fn tail(&self, from: usize, sampled: &str) -> Result<(TurnEnd, String), String> {
        self.plan(from, sampled).unwrap_or_else(|error| Err(error.to_string()))
    }

    fn plan(
        &self,
        from: usize,
        sampled: &str,
    ) -> Result<Result<(TurnEnd, String), String>, PromptError> {
        let messages = &self.case.messages;
        let mut memory = PromptMemory::default();
        let policy = HistoryPolicy::Sampled;
        let plan = memory.plan(self.renderer, &self.conversation(&messages[..from - 1]), policy)?;
        let sampled = self.renderer.tokenizer().encode(sampled)?;
        memory.remember(&plan, &messages[from - 1], &sampled, 0);
        let sequence = [plan.ids, sampled].concat();
        let plan = memory.plan(self.renderer, &self.conversation(messages), policy)?;
        let Basis::Call { end: Some(end), .. } = plan.basis else {
            return Ok(Err("rendered anew".to_owned()));
        };
        let tail = plan.ids.strip_prefix(&*sequence).expect("it begins with what was sampled");
        Ok(Ok((end, self.renderer.tokenizer().decode(tail))))
    }

    fn conversation<'a>(&'a self, messages: &'a [Value]) -> Conversation<'a> {
        let tools = self.case.tools.as_deref().unwrap_or_default();
        Conversation { messages, tools, options: &self.case.options, now: self.now }
    }

    fn text(&self, messages: &[Value], add_generation_prompt: bool) -> Result<String, String> {
        let input = RenderInput {
            messages,
            tools: self.case.tools.as_deref(),
            add_generation_prompt,
            options: &self.case.options,
            now: self.now,
        };
        self.renderer.template().render(&input).map_err(|error| error.to_string())
    }

    fn stops(&self) -> Vec<&str> {
        let bytes = |id: &u32| self.renderer.tokenizer().bytes(*id);
        let text = |id| std::str::from_utf8(bytes(id)).unwrap();
        self.renderer.stop_ids().iter().map(text).collect()
    }

    /// The special token that a text begins with.
    fn mark_at<'t>(&self, text: &'t str) -> Option<&'t str> {
        let begins = self.marks().filter(|mark| text.starts_with(mark)).map(str::len);
        begins.max().map(|length| &text[..length])
    }

    fn marks(&self) -> impl Iterator<Item = &str> {
        let tokenizer = self.renderer.tokenizer();
        let special = tokenizer.added().filter(|(id, _)| tokenizer.is_special(*id));
        special.map(|(_, mark)| std::str::from_utf8(mark).unwrap())
    }
}

/// How a tail was held to what the template writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Held {
    /// Prompt, turn and tail are the template's whole.
    Exact,
    /// The template writes the turn otherwise in the whole, which ends in the tail.
    End,
    /// The template does not take the conversation up to the turn.
    Refused,
}

/// The tokenizer of the simulated model with the template's own marks, and those that stop.
fn tokenizer(template: &Template, file: &File) -> (Tokenizer, Vec<u32>) {
    // Some marks are put together by the template.
    let texts = file.cases.iter().zip(&template.expected).filter_map(|(case, expected)| {
        match (&*case.name, expected) {
            ("turns" | "parallel calls, then text", Expected::Text { text }) => Some(text),
            _ => None,
        }
    });
    let source: String =
        template.sources.values().chain(texts).map(|text| format!("{text}\n")).collect();
    let (source, specials, name) = (&*source, &file.specials, &*template.name);
    let json = include_bytes!("../../../simulator/assets/tokenizer.json");
    let mut file: Value = serde_json::from_slice(json).unwrap();
    let added = file["added_tokens"].as_array_mut().unwrap();
    let mut marks = marks(source);
    marks.extend(specials.values().map(|mark| mark.as_str().unwrap()));
    marks.retain(|mark| added.iter().all(|token| token["content"] != *mark));
    for (number, mark) in marks.iter().enumerate() {
        added.push(json!({
            "id": 4096 + number, "content": mark, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true,
        }));
    }
    let tokenizer = Tokenizer::from_json(file.to_string().as_bytes()).unwrap();
    let goes_on = |stop: &str| NO_STOPS.contains(&(name, stop));
    let stops = STOPS.iter().copied().filter(|stop| source.contains(stop) && !goes_on(stop));
    let stops = stops.chain(specials["eos_token"].as_str().filter(|stop| !goes_on(stop)));
    let stops: BTreeSet<u32> = stops.filter_map(|stop| tokenizer.id_of(stop)).collect();
    (tokenizer, stops.into_iter().collect())
}

/// The special tokens that a template writes.
fn marks(source: &str) -> BTreeSet<&str> {
    let mut found: BTreeSet<&str> =
        ODD_MARKS.into_iter().filter(|mark| source.contains(mark)).collect();
    for (at, opening) in source.match_indices(['<', '[']) {
        let closing = if opening == "<" { '>' } else { ']' };
        let Some(length) = source[at + 1..].find([closing, ' ', '\n', '\'', '"', '{']) else {
            continue;
        };
        let inner = &source[at + 1..at + 1 + length];
        if !source[at + 1 + length..].starts_with(closing) {
            continue;
        }
        let is_mark = match opening {
            "<" => {
                inner.starts_with(['|', '｜'])
                    || inner.ends_with(['|', '｜'])
                    || STOPS.contains(&&source[at..at + length + 2])
                    || inner.starts_with("start_of_")
                    || inner.starts_with("SPECIAL_")
                    || inner.starts_with("seed:")
            }
            _ => {
                inner.len() > 1
                    && inner
                        .chars()
                        .all(|letter| letter.is_ascii_uppercase() || "_/".contains(letter))
            }
        };
        if is_mark && inner.len() > 2 {
            found.insert(&source[at..at + length + 2]);
        }
    }
    found
}

/// Bytes that two texts have in common at their beginning.
fn common_length(one: &str, other: &str) -> usize {
    let same = one.char_indices().zip(other.chars()).take_while(|((_, a), b)| a == b);
    same.last().map_or(0, |((at, character), _)| at + character.len_utf8())
}

fn first_difference(expected: &str, found: &str) -> String {
    let shared = common_length(expected, found);
    let around = |text: &str| -> String { text[shared..].chars().take(120).collect() };
    format!("expected {:?}, found {:?}", around(expected), around(found))
}
