//! Replies in the shape of OpenAI Responses: as a stream of items and unary.

use super::custom_input::{self, InputReader};
use super::error::{failure, message};
use super::terms::ResponsesTerms;
use super::tools::ToolKind;
use super::{local_shell, reasoning};
use crate::error::ApiError;
use crate::reply::{FinishReason, Reply, ReplyBlock, ReplyEnd, ReplyEvent, ReplyHead, Usage};
use crate::stream::out_of_turn;
use polar_wire::responses::{
    InputTokensDetails, OutputItem, OutputTokensDetails, Part, Response, ResponseError, StreamEvent,
};
use polar_wire::sse::{write_json, write_json_event};
use std::sync::Arc;

const IN_PROGRESS: &str = "in_progress";
const COMPLETED: &str = "completed";
const INCOMPLETE: &str = "incomplete";

/// Writes the events of one reply. Items follow each other: opening one closes the last.
///
/// Keeps the reply, because each item and the whole are told once more when they end.
#[derive(Debug)]
pub(crate) struct ResponsesStream {
    head: ReplyHead,
    terms: Arc<ResponsesTerms>,
    sequence: u64,
    reply: Reply,
    open: Option<OpenItem>,
    /// Id and position of the open item.
    id: String,
    index: usize,
}

#[derive(Debug)]
enum OpenItem {
    Text(&'static TextEvents),
    /// With the call's position among the calls.
    Function(u32),
    Custom(u32, InputReader),
    /// Told once it is complete, as a call of the shell or of a function.
    Shell(u32),
}

/// The events of an item that is text.
#[derive(Debug, PartialEq)]
struct TextEvents {
    part_added: &'static str,
    delta: &'static str,
    done: &'static str,
    part_done: &'static str,
}

const MESSAGE: TextEvents = TextEvents {
    part_added: "response.content_part.added",
    delta: "response.output_text.delta",
    done: "response.output_text.done",
    part_done: "response.content_part.done",
};

const REASONING: TextEvents = TextEvents {
    part_added: "response.content_part.added",
    delta: "response.reasoning_text.delta",
    done: "response.reasoning_text.done",
    part_done: "response.content_part.done",
};

const SUMMARY: TextEvents = TextEvents {
    part_added: "response.reasoning_summary_part.added",
    delta: "response.reasoning_summary_text.delta",
    done: "response.reasoning_summary_text.done",
    part_done: "response.reasoning_summary_part.done",
};

impl TextEvents {
    fn part<'a>(&self, text: &'a str) -> Part<'a> {
        match *self {
            MESSAGE => Part::OutputText { text, annotations: [], logprobs: [] },
            SUMMARY => Part::SummaryText { text },
            _ => Part::ReasoningText { text },
        }
    }

    /// The fields that say which part it is.
    fn place(&self) -> StreamEvent<'static> {
        let index = Some(0);
        match *self {
            SUMMARY => StreamEvent { summary_index: index, ..StreamEvent::default() },
            _ => StreamEvent { content_index: index, ..StreamEvent::default() },
        }
    }
}

impl ResponsesStream {
    pub(crate) fn new(head: ReplyHead) -> Self {
        let terms = head.responses.clone().unwrap_or_default();
        let (reply, id) = (Reply::default(), String::new());
        Self { head, terms, sequence: 0, reply, open: None, id, index: 0 }
    }

    pub(crate) fn start(&mut self, out: &mut Vec<u8>) {
        self.whole("response.created", &Standing::IN_PROGRESS, out);
        self.keep_alive(out);
    }

    /// A real event: Codex does not count comments as life.
    pub(crate) fn keep_alive(&mut self, out: &mut Vec<u8>) {
        self.whole("response.in_progress", &Standing::IN_PROGRESS, out);
    }

    /// An error when the event cannot be told in this dialect any more.
    pub(crate) fn event(&mut self, event: &ReplyEvent, out: &mut Vec<u8>) -> Result<(), ApiError> {
        match event {
            ReplyEvent::Text(text) => self.text(&MESSAGE, event, text, out),
            ReplyEvent::Reasoning(text) if self.terms.summary => {
                self.text(&SUMMARY, event, text, out);
            }
            ReplyEvent::Reasoning(text) => self.text(&REASONING, event, text, out),
            ReplyEvent::ToolCall { index, name, .. } => {
                let item = match self.terms.tools.get(name).map(|tool| tool.kind) {
                    None | Some(ToolKind::Function) => OpenItem::Function(*index),
                    Some(ToolKind::Custom) => OpenItem::Custom(*index, InputReader::default()),
                    Some(ToolKind::LocalShell) => OpenItem::Shell(*index),
                };
                self.open(item, event, out);
            }
            ReplyEvent::ToolArguments { index, fragment } => {
                self.arguments(*index, fragment, out)?;
                self.reply.push(event);
            }
        }
        Ok(())
    }

    pub(crate) fn end(&mut self, end: &ReplyEnd, out: &mut Vec<u8>) {
        let standing = Standing::ended(end);
        let last = self.reply.blocks.last().map_or(COMPLETED, |block| standing.of_last(block));
        self.close(last, out);
        let kind = match standing.status {
            INCOMPLETE => "response.incomplete",
            _ => "response.completed",
        };
        self.whole(kind, &standing, out);
    }

    /// Ends the reply as failed. What it said is not told again, so that nobody acts on it.
    pub(crate) fn error(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        self.reply = Reply::default();
        let message = message(error);
        let error = Some(failure(error, &message));
        self.whole(
            "response.failed",
            &Standing { status: "failed", error, ..Standing::IN_PROGRESS },
            out,
        );
    }

    fn text(
        &mut self,
        events: &'static TextEvents,
        event: &ReplyEvent,
        text: &str,
        out: &mut Vec<u8>,
    ) {
        match &self.open {
            Some(OpenItem::Text(open)) if *open == events => self.reply.push(event),
            _ => self.open(OpenItem::Text(events), event, out),
        }
        let logprobs = (*events == MESSAGE).then_some([]);
        let delta = StreamEvent { delta: Some(text), logprobs, ..events.place() };
        self.write(events.delta, delta, out);
    }

    fn arguments(&mut self, index: u32, fragment: &str, out: &mut Vec<u8>) -> Result<(), ApiError> {
        match &mut self.open {
            Some(OpenItem::Function(open)) if *open == index => self.write(
                "response.function_call_arguments.delta",
                StreamEvent { delta: Some(fragment), ..StreamEvent::default() },
                out,
            ),
            Some(OpenItem::Custom(open, reader)) if *open == index => {
                let more = reader.push(fragment);
                self.input_delta(&more, out);
            }
            Some(OpenItem::Shell(open)) if *open == index => {}
            _ => return Err(out_of_turn(index)),
        }
        Ok(())
    }

    fn input_delta(&mut self, more: &str, out: &mut Vec<u8>) {
        if !more.is_empty() {
            let delta = StreamEvent { delta: Some(more), ..StreamEvent::default() };
            self.write("response.custom_tool_call_input.delta", delta, out);
        }
    }

    /// Closes the open item and begins the one that `first` begins.
    fn open(&mut self, item: OpenItem, first: &ReplyEvent, out: &mut Vec<u8>) {
        self.close(COMPLETED, out);
        self.index = self.reply.blocks.len();
        self.reply.push(first);
        // The shell's action is told in one piece.
        if let Some(empty) = empty(first).filter(|_| !matches!(item, OpenItem::Shell(_))) {
            self.id = item_id(&self.head, &self.terms, self.index, &empty);
            self.item("response.output_item.added", &empty, IN_PROGRESS, out);
        }
        if let OpenItem::Text(events) = item {
            let part = StreamEvent { part: Some(events.part("")), ..events.place() };
            self.write(events.part_added, part, out);
        }
        self.open = Some(item);
    }

    /// Tells the open item once more, as a whole.
    fn close(&mut self, status: &'static str, out: &mut Vec<u8>) {
        let Some(item) = self.open.take() else { return };
        let Some(block) = self.reply.blocks.get(self.index).cloned() else { return };
        match (item, &block) {
            (OpenItem::Text(events), ReplyBlock::Text(text) | ReplyBlock::Reasoning(text)) => {
                let logprobs = (*events == MESSAGE).then_some([]);
                let done = StreamEvent { text: Some(text), logprobs, ..events.place() };
                self.write(events.done, done, out);
                let part = StreamEvent { part: Some(events.part(text)), ..events.place() };
                self.write(events.part_done, part, out);
            }
            (OpenItem::Custom(_, mut reader), ReplyBlock::ToolCall { arguments, .. }) => {
                self.input_delta(&reader.finish(), out);
                let input = custom_input::input(arguments);
                let done = StreamEvent { input: Some(&input), ..StreamEvent::default() };
                self.write("response.custom_tool_call_input.done", done, out);
            }
            (item, ReplyBlock::ToolCall { arguments, .. }) => {
                if matches!(item, OpenItem::Shell(_)) {
                    self.id = item_id(&self.head, &self.terms, self.index, &block);
                    self.item("response.output_item.added", &block, IN_PROGRESS, out);
                }
                if !is_shell_call(&self.terms, &block) {
                    let done = StreamEvent { arguments: Some(arguments), ..StreamEvent::default() };
                    self.write("response.function_call_arguments.done", done, out);
                }
            }
            _ => {}
        }
        self.item("response.output_item.done", &block, status, out);
    }

    /// Writes an event of the open item.
    fn write(&mut self, kind: &'static str, event: StreamEvent<'_>, out: &mut Vec<u8>) {
        let sequence_number = self.next_sequence();
        let (item_id, output_index) = (Some(self.id.as_str()), Some(self.index));
        let event = StreamEvent { kind, sequence_number, item_id, output_index, ..event };
        write_json_event(out, Some(kind), &event);
    }

    fn item(
        &mut self,
        kind: &'static str,
        block: &ReplyBlock,
        status: &'static str,
        out: &mut Vec<u8>,
    ) {
        let sequence_number = self.next_sequence();
        let item = Some(item(&self.head, &self.terms, self.index, block, status));
        let output_index = Some(self.index);
        let event =
            StreamEvent { kind, sequence_number, output_index, item, ..StreamEvent::default() };
        write_json_event(out, Some(kind), &event);
    }

    fn whole(&mut self, kind: &'static str, standing: &Standing<'_>, out: &mut Vec<u8>) {
        let sequence_number = self.next_sequence();
        let blocks = match standing.status {
            IN_PROGRESS => &[],
            _ => self.reply.blocks.as_slice(),
        };
        let response = Some(response(&self.head, &self.terms, blocks, standing));
        let event = StreamEvent { kind, sequence_number, response, ..StreamEvent::default() };
        write_json_event(out, Some(kind), &event);
    }

    fn next_sequence(&mut self) -> u64 {
        let sequence = self.sequence;
        self.sequence += 1;
        sequence
    }
}

/// What an item is before anything of its content is told.
fn empty(first: &ReplyEvent) -> Option<ReplyBlock> {
    let mut reply = Reply::default();
    match first {
        ReplyEvent::Text(_) => return Some(ReplyBlock::Text(String::new())),
        ReplyEvent::Reasoning(_) => return Some(ReplyBlock::Reasoning(String::new())),
        call => reply.push(call),
    }
    reply.blocks.pop()
}

pub(crate) fn unary(head: &ReplyHead, reply: &Reply, end: &ReplyEnd) -> Vec<u8> {
    let terms = head.responses.clone().unwrap_or_default();
    let mut out = Vec::with_capacity(1024);
    write_json(&mut out, &response(head, &terms, &reply.blocks, &Standing::ended(end)));
    out
}

/// How a reply stands.
struct Standing<'a> {
    status: &'static str,
    /// A stop string was sampled in the last call, if that is what the reply ends with.
    cuts_a_call: bool,
    error: Option<ResponseError<'a>>,
    usage: Option<polar_wire::responses::Usage>,
}

impl Standing<'_> {
    const IN_PROGRESS: Self =
        Self { status: IN_PROGRESS, cuts_a_call: false, error: None, usage: None };

    fn ended(end: &ReplyEnd) -> Self {
        let status = match end.finish {
            FinishReason::Length | FinishReason::Abort => INCOMPLETE,
            FinishReason::Stop | FinishReason::StopSequence | FinishReason::ToolCalls => COMPLETED,
        };
        let cuts_a_call = end.finish == FinishReason::StopSequence;
        Self { status, cuts_a_call, error: None, usage: Some(usage(&end.usage)) }
    }

    /// The status of the last item.
    fn of_last(&self, block: &ReplyBlock) -> &'static str {
        match block {
            ReplyBlock::ToolCall { .. } if self.cuts_a_call => INCOMPLETE,
            _ => self.status,
        }
    }
}

fn response<'a>(
    head: &'a ReplyHead,
    terms: &'a ResponsesTerms,
    blocks: &'a [ReplyBlock],
    standing: &'a Standing<'a>,
) -> Response<'a> {
    let last = blocks.len().saturating_sub(1);
    let status = |index: usize, block| match index == last {
        true => standing.of_last(block),
        false => COMPLETED,
    };
    let items = blocks.iter().enumerate();
    Response {
        id: &head.id,
        created_at: head.created,
        status: standing.status,
        error: standing.error,
        incomplete_reason: (standing.status == INCOMPLETE).then_some("max_output_tokens"),
        model: &head.model,
        output: items.map(|(i, block)| item(head, terms, i, block, status(i, block))).collect(),
        usage: standing.usage,
        echo: &terms.echo,
    }
}

fn item<'a>(
    head: &ReplyHead,
    terms: &'a ResponsesTerms,
    index: usize,
    block: &'a ReplyBlock,
    status: &'static str,
) -> OutputItem<'a> {
    let id = item_id(head, terms, index, block);
    let part = |events: TextEvents, text: &'a str| match text {
        "" => Vec::new(),
        text => vec![events.part(text)],
    };
    match block {
        ReplyBlock::Text(text) => {
            OutputItem::Message { id, status, role: "assistant", content: part(MESSAGE, text) }
        }
        ReplyBlock::Reasoning(text) => OutputItem::Reasoning {
            id,
            summary: if terms.summary { part(SUMMARY, text) } else { Vec::new() },
            content: (!terms.summary).then(|| part(REASONING, text)),
            encrypted_content: (terms.encrypted && !text.is_empty())
                .then(|| reasoning::sealed(text)),
        },
        ReplyBlock::ToolCall { id: call_id, name, arguments, .. } => {
            let tool = terms.tools.get(name);
            let namespace = tool.and_then(|tool| tool.namespace.as_deref());
            let kind = tool.map_or(ToolKind::Function, |tool| tool.kind);
            let name = tool.map_or(name.as_str(), |tool| &tool.name);
            let action = match kind {
                ToolKind::LocalShell => local_shell::action(arguments),
                ToolKind::Function | ToolKind::Custom => None,
            };
            match (kind, action) {
                (ToolKind::Custom, _) => {
                    let input = custom_input::input(arguments);
                    OutputItem::CustomToolCall { id, status, call_id, name, namespace, input }
                }
                (_, Some(action)) => OutputItem::LocalShellCall { id, status, call_id, action },
                _ => OutputItem::FunctionCall { id, status, call_id, name, namespace, arguments },
            }
        }
    }
}

/// Whether a call is told as one of the client's shell. One that does not say what to run is
/// told as it was sampled, as a call of a function.
fn is_shell_call(terms: &ResponsesTerms, block: &ReplyBlock) -> bool {
    match block {
        ReplyBlock::ToolCall { name, arguments, .. } => {
            terms.tools.get(name).is_some_and(|tool| tool.kind == ToolKind::LocalShell)
                && local_shell::action(arguments).is_some()
        }
        _ => false,
    }
}

/// The id of an item tells the reply it belongs to, see [`reply_of`].
fn item_id(head: &ReplyHead, terms: &ResponsesTerms, index: usize, block: &ReplyBlock) -> String {
    let kind = match block {
        ReplyBlock::Text(_) => "msg",
        ReplyBlock::Reasoning(_) => "rs",
        ReplyBlock::ToolCall { name, .. } => match terms.tools.get(name).map(|tool| tool.kind) {
            Some(ToolKind::Custom) => "ctc",
            Some(ToolKind::LocalShell) if is_shell_call(terms, block) => "lsh",
            _ => "fc",
        },
    };
    format!("{kind}_{}_{index}", head.id.strip_prefix(REPLY).unwrap_or(&head.id))
}

/// Begins the id of a reply.
const REPLY: &str = "resp_";

/// The reply that an item told by Polar belongs to, and its position there.
pub(super) fn reply_of(item_id: &str) -> Option<(String, usize)> {
    let (_, rest) = item_id.split_once('_')?;
    let (reply, index) = rest.rsplit_once('_')?;
    Some((format!("{REPLY}{reply}"), index.parse().ok()?))
}

fn usage(usage: &Usage) -> polar_wire::responses::Usage {
    polar_wire::responses::Usage {
        input_tokens: usage.prompt_tokens,
        input_tokens_details: InputTokensDetails {
            cached_tokens: usage.cached_tokens.unwrap_or_default().min(usage.prompt_tokens),
            cache_write_tokens: 0,
        },
        output_tokens: usage.completion_tokens,
        output_tokens_details: OutputTokensDetails {
            reasoning_tokens: usage
                .reasoning_tokens
                .unwrap_or_default()
                .min(usage.completion_tokens),
        },
        total_tokens: usage.prompt_tokens + usage.completion_tokens,
    }
}
