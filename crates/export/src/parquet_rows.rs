//! A Parquet row for each trace: its tokens, and all that is known of them.
//!
//! The schema is [`columns`] and nothing else: the file's own and the table in `docs/export.md`
//! are made of it.

use crate::{ExportError, Row, RowWriter};
use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, FloatType, Int32Type, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::parser::parse_message_type;
use serde::Serialize;
use std::io::Write;
use std::sync::Arc;

/// Rows of one row group hold about so many bytes in memory at most.
const GROUP_BYTES: usize = 32 << 20;

/// A column of the file.
pub struct Column {
    /// Its name.
    pub name: &'static str,
    /// What it holds.
    pub about: &'static str,
    kind: Kind,
    cell: fn(&Row<'_>) -> Result<Cell, ExportError>,
}

/// What a column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Whole,
    Number,
    Masks,
    Ids,
    Places,
    Logprobs,
    Numbers,
    Texts,
}

impl Kind {
    fn schema(self, name: &str) -> String {
        let list = |element: &str| {
            format!("required group {name} (LIST) {{ repeated group list {{ {element}; }} }}")
        };
        match self {
            Self::Text => format!("optional binary {name} (STRING);"),
            Self::Whole => format!("optional int64 {name};"),
            Self::Number => format!("optional double {name};"),
            Self::Masks => list("required int32 element (INTEGER(8, true))"),
            Self::Ids => list("required int32 element"),
            Self::Places => list("required int64 element"),
            Self::Logprobs => list("optional float element"),
            Self::Numbers => list("optional double element"),
            Self::Texts => list("optional binary element (STRING)"),
        }
    }
}

impl Column {
    /// Its type, in words.
    pub fn type_name(&self) -> &'static str {
        match self.kind {
            Kind::Text => "text or null",
            Kind::Whole => "int64 or null",
            Kind::Number => "double or null",
            Kind::Masks => "list of int8",
            Kind::Ids => "list of int32",
            Kind::Places => "list of int64",
            Kind::Logprobs => "list of float or null",
            Kind::Numbers => "list of double or null",
            Kind::Texts => "list of text or null",
        }
    }
}

/// What a row has in a column. A list's elements may each be missing.
enum Cell {
    Text(Option<String>),
    Whole(Option<i64>),
    Number(Option<f64>),
    Small(Vec<i32>),
    Places(Vec<i64>),
    Logprobs(Vec<Option<f32>>),
    Numbers(Vec<Option<f64>>),
    Texts(Vec<Option<String>>),
}

impl Cell {
    fn text(text: impl ToString) -> Result<Self, ExportError> {
        Ok(Self::Text(Some(text.to_string())))
    }

    /// A word of ours, as JSON spells it.
    fn word(value: &impl Serialize) -> Result<Self, ExportError> {
        let value = serde_json::to_value(value)?;
        Ok(Self::Text(value.as_str().map(str::to_owned)))
    }

    fn json(value: &impl Serialize) -> Result<Self, ExportError> {
        Ok(Self::Text(Some(serde_json::to_string(value)?)))
    }

    fn whole(number: impl Into<i64>) -> Result<Self, ExportError> {
        Ok(Self::Whole(Some(number.into())))
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.as_ref().map_or(0, String::len) + 24,
            Self::Whole(_) | Self::Number(_) => 16,
            Self::Small(list) => list.len() * 4,
            Self::Places(list) => list.len() * 8,
            Self::Logprobs(list) => list.len() * 8,
            Self::Numbers(list) => list.len() * 16,
            Self::Texts(list) => {
                list.iter().flatten().map(String::len).sum::<usize>() + list.len() * 24
            }
        }
    }
}

macro_rules! columns {
    ($($name:ident: $kind:ident, $about:literal, $cell:expr;)*) => {
        const COLUMNS: &[Column] = &[$(Column {
            name: stringify!($name), about: $about, kind: Kind::$kind, cell: $cell,
        }),*];
    };
}

columns! {
    task_id: Text, "The task.", |row| Cell::text(&row.trajectory.task_id);
    group_id: Text, "Sessions that are compared with each other.", |row| Cell::text(&row.trace.group_id);
    rollout_id: Text, "The session. A session's rows share it.", |row| Cell::text(&row.trace.rollout_id);
    trace_index: Whole, "Which of the session's traces, from 0.", |row| Cell::whole(row.index);
    siblings: Whole, "Traces of the session, those that are not in the file too.", |row| Cell::whole(row.trace.siblings);
    loss_weight: Number, "`1 / siblings`: the weight that makes every session count once.", |row| Ok(Cell::Number(Some(row.trace.loss_weight)));
    reason: Text, "What became of the session.", |row| Cell::word(&row.trajectory.reason);
    reward: Number, "Reward of the trace; that of the session where the trace has none of its own.", |row| Ok(Cell::Number(row.trace.reward));
    rollout_reward: Number, "Reward of the session.", |row| Ok(Cell::Number(row.trajectory.reward));
    turn_scores: Numbers, "Rewards of its calls; empty where no call has one.", |row| Ok(Cell::Numbers(row.trace.turn_scores.clone()));
    turn_ends: Places, "One past the last response position that each call sampled.", |row| Ok(Cell::Places(row.trace.turn_ends.iter().map(|end| *end as i64).collect()));
    prompt_ids: Ids, "Context before the first sampled token.", |row| ids(row, &row.trace.prompt_ids);
    response_ids: Ids, "Everything after it: what was sampled, and the context between.", |row| ids(row, &row.trace.response_ids);
    loss_mask: Masks, "1 where the token is to be trained on. As long as `response_ids`.", |row| Ok(Cell::Small(row.trace.loss_mask.iter().map(|mask| i32::from(*mask)).collect()));
    response_logprobs: Logprobs, "Logprob of each response token as the engine gave it; null where there is none, never 0. As long as `response_ids`.", |row| Ok(Cell::Logprobs(row.trace.response_logprobs.clone()));
    response_versions: Texts, "Weight version that sampled each response token; null where none did or none is known. As long as `response_ids`.", |row| Ok(Cell::Texts(versions(row)));
    trained_tokens: Whole, "Ones in `loss_mask`.", |row| Cell::whole(i64::try_from(row.trained()).unwrap_or(i64::MAX));
    role: Text, "Who made its calls: `main`, `sub_agent`, ….", |row| Cell::word(&row.trace.lineage.role);
    fork_cause: Text, "Why it is a trace of its own.", |row| Cell::word(&row.trace.lineage.fork.cause);
    parent: Whole, "`trace_index` of the trace that it forked from.", |row| Ok(Cell::Whole(row.trace.lineage.parent.map(i64::from)));
    calls: Texts, "The calls it is made of.", |row| Ok(Cell::Texts(row.trace.calls.iter().map(|call| Some(call.to_string())).collect()));
    strategy: Text, "How the traces were built.", |row| Cell::text(row.trajectory.strategy.as_str());
    finish_reason: Text, "Why the last reply ended.", |row| Ok(Cell::Text(row.trace.finish_reason.clone()));
    prompt_messages: Text, "Messages of the first prompt, as OpenAI's, in JSON.", |row| Cell::json(&row.trace.prompt_messages);
    response_messages: Text, "Messages after it, in JSON.", |row| Cell::json(&row.trace.response_messages);
    tools: Text, "Tools offered, as OpenAI's, in JSON.", |row| match &row.trace.tools { Some(tools) => Cell::json(tools), None => Ok(Cell::Text(None)) };
    sampling: Text, "Sampling parameters and engine, in JSON.", |row| Cell::json(&row.trace.sampling);
}

/// All columns, in the file's order.
pub fn columns() -> &'static [Column] {
    COLUMNS
}

fn ids(row: &Row<'_>, ids: &[u32]) -> Result<Cell, ExportError> {
    let signed = |id: &u32| {
        i32::try_from(*id).map_err(|_| ExportError::Id {
            session: row.trajectory.session_id.to_string(),
            id: *id,
        })
    };
    Ok(Cell::Small(ids.iter().map(signed).collect::<Result<_, _>>()?))
}

fn versions(row: &Row<'_>) -> Vec<Option<String>> {
    let mut versions = vec![None; row.trace.response_ids.len()];
    for span in &row.trace.weight_versions {
        let end = usize::try_from(span.end).unwrap_or(usize::MAX).min(versions.len());
        let start = usize::try_from(span.start).unwrap_or(usize::MAX).min(end);
        versions[start..end].fill(span.version.clone());
    }
    versions
}

/// Writes a Parquet file. Rows are held until a row group is full.
pub struct ParquetWriter<W: Write + Send> {
    /// Gone once the file is finished.
    file: Option<SerializedFileWriter<W>>,
    /// Cells of the rows that are held, by column.
    held: Vec<Vec<Cell>>,
    bytes: usize,
    most_bytes: usize,
}

impl<W: Write + Send> ParquetWriter<W> {
    /// Begins a file.
    pub fn new(out: W) -> Result<Self, ExportError> {
        Self::with_group_bytes(out, GROUP_BYTES)
    }

    /// Begins a file whose row groups hold about so many bytes in memory.
    pub fn with_group_bytes(out: W, most_bytes: usize) -> Result<Self, ExportError> {
        let fields: Vec<_> = COLUMNS.iter().map(|column| column.kind.schema(column.name)).collect();
        let schema = parse_message_type(&format!("message trace {{ {} }}", fields.join(" ")))?;
        let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
        let file = SerializedFileWriter::new(out, Arc::new(schema), Arc::new(properties))?;
        Ok(Self { file: Some(file), held: empty(), bytes: 0, most_bytes })
    }

    fn write_group(&mut self) -> Result<(), ExportError> {
        let held = std::mem::replace(&mut self.held, empty());
        self.bytes = 0;
        let Some(file) = self.file.as_mut().filter(|_| held.iter().any(|cells| !cells.is_empty()))
        else {
            return Ok(());
        };
        let mut group = file.next_row_group()?;
        for cells in held {
            if let Some(mut column) = group.next_column()? {
                write_column(&mut column, &cells)?;
                column.close()?;
            }
        }
        group.close()?;
        Ok(())
    }
}

fn empty() -> Vec<Vec<Cell>> {
    COLUMNS.iter().map(|_| Vec::new()).collect()
}

impl<W: Write + Send> RowWriter for ParquetWriter<W> {
    fn write(&mut self, row: Row<'_>) -> Result<(), ExportError> {
        let cells: Vec<Cell> =
            COLUMNS.iter().map(|column| (column.cell)(&row)).collect::<Result<_, _>>()?;
        for (held, cell) in self.held.iter_mut().zip(cells) {
            self.bytes += cell.bytes();
            held.push(cell);
        }
        if self.bytes >= self.most_bytes { self.write_group() } else { Ok(()) }
    }

    fn finish(&mut self) -> Result<(), ExportError> {
        self.write_group()?;
        if let Some(file) = self.file.take() {
            file.close()?;
        }
        Ok(())
    }
}

/// The values of a column, and the levels that say which of them are missing and where lists
/// begin.
#[derive(Default)]
struct Levels {
    definition: Vec<i16>,
    repetition: Vec<i16>,
}

impl Levels {
    /// Notes a value that may be missing.
    fn value(&mut self, is_there: bool) {
        self.definition.push(i16::from(is_there));
    }

    /// Notes a list. `deepest` is the level of an element that is there.
    fn list(&mut self, deepest: i16, elements: impl ExactSizeIterator<Item = bool>) {
        if elements.len() == 0 {
            self.definition.push(0);
            self.repetition.push(0);
        }
        for (index, is_there) in elements.enumerate() {
            self.definition.push(if is_there { deepest } else { deepest - 1 });
            self.repetition.push(i16::from(index > 0));
        }
    }

    fn repetition(&self) -> Option<&[i16]> {
        (!self.repetition.is_empty()).then_some(self.repetition.as_slice())
    }
}

fn write_column(
    column: &mut SerializedColumnWriter<'_>,
    cells: &[Cell],
) -> Result<(), ExportError> {
    let mut levels = Levels::default();
    let (mut small, mut whole) = (Vec::new(), Vec::new());
    let (mut floats, mut doubles, mut texts) = (Vec::new(), Vec::new(), Vec::new());
    let bytes = |text: &String| ByteArray::from(text.as_str());
    for cell in cells {
        match cell {
            Cell::Text(text) => {
                levels.value(text.is_some());
                texts.extend(text.as_ref().map(bytes));
            }
            Cell::Whole(number) => {
                levels.value(number.is_some());
                whole.extend(*number);
            }
            Cell::Number(number) => {
                levels.value(number.is_some());
                doubles.extend(*number);
            }
            Cell::Small(list) => {
                levels.list(1, list.iter().map(|_| true));
                small.extend_from_slice(list);
            }
            Cell::Places(list) => {
                levels.list(1, list.iter().map(|_| true));
                whole.extend_from_slice(list);
            }
            Cell::Logprobs(list) => {
                levels.list(2, list.iter().map(Option::is_some));
                floats.extend(list.iter().flatten().copied());
            }
            Cell::Numbers(list) => {
                levels.list(2, list.iter().map(Option::is_some));
                doubles.extend(list.iter().flatten().copied());
            }
            Cell::Texts(list) => {
                levels.list(2, list.iter().map(Option::is_some));
                texts.extend(list.iter().flatten().map(bytes));
            }
        }
    }
    let definition = Some(levels.definition.as_slice());
    let repetition = levels.repetition();
    match cells.first() {
        Some(Cell::Small(_)) => {
            column.typed::<Int32Type>().write_batch(&small, definition, repetition)?
        }
        Some(Cell::Whole(_) | Cell::Places(_)) => {
            column.typed::<Int64Type>().write_batch(&whole, definition, repetition)?
        }
        Some(Cell::Logprobs(_)) => {
            column.typed::<FloatType>().write_batch(&floats, definition, repetition)?
        }
        Some(Cell::Number(_) | Cell::Numbers(_)) => {
            column.typed::<DoubleType>().write_batch(&doubles, definition, repetition)?
        }
        Some(Cell::Text(_) | Cell::Texts(_)) => {
            column.typed::<ByteArrayType>().write_batch(&texts, definition, repetition)?
        }
        None => 0,
    };
    Ok(())
}
