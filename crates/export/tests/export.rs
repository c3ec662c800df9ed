//! What is written is what was selected, and nothing else.

#![allow(clippy::unwrap_used)] // Tests: a panic is the report.

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::RowAccessor;
use polar_export::{
    AtifWriter, Filters, LeftOut, MessagesWriter, ParquetWriter, RowWriter, Selection, Side,
    columns,
};
use polar_types::Trajectory;
use serde_json::{Value, json};
use std::path::Path;

fn trace(index: u32, reward: Value, more: Value) -> Value {
    let mut trace = json!({
        "prompt_ids": [1, 2], "response_ids": [3, 4, 5 + index], "loss_mask": [1, 0, 1],
        "response_logprobs": [-0.5, null, -0.25],
        "prompt_messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ],
        "response_messages": [
            {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [
                {"id": "x", "type": "function", "function": {"name": "ls", "arguments": "{\"p\": 1}"}}]},
            {"role": "tool", "tool_call_id": "x", "content": "file"},
            {"role": "assistant", "content": "done"},
        ],
        "tools": [{"type": "function", "function": {"name": "ls"}}],
        "finish_reason": "stop", "reward": reward,
        "weight_versions": [{"version": "v1", "start": 0, "end": 1}, {"version": "v2", "start": 2, "end": 3}],
        "turn_ends": [1, 3],
        "lineage": {"role": "main", "fork": {"cause": "new_lineage", "shared_tokens": 0}},
        "calls": ["c00000", "c00001"], "rollout_id": "t-s0", "group_id": "t",
        "siblings": 2, "loss_weight": 0.5, "sampling": {"temperature": 1.0},
    });
    trace.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    trace
}

fn trajectory(group: &str, traces: Vec<Value>) -> Trajectory {
    let trained: u64 = traces
        .iter()
        .flat_map(|trace| trace["loss_mask"].as_array().unwrap())
        .map(|mask| mask.as_u64().unwrap())
        .sum();
    serde_json::from_value(json!({
        "session_id": "t-s0", "task_id": group, "group_id": group, "strategy": "prefix_merging",
        "reward": 0.5, "reason": "completed", "traces": traces,
        "tokens": {"sampled": trained, "trained": trained, "untrained": {}, "context": 1},
        "forks": {"new_lineage": 1},
    }))
    .unwrap()
}

fn two_traces() -> Trajectory {
    let side = json!({"lineage": {"role": "sub_agent", "parent": 0,
        "fork": {"cause": "history_rewritten", "shared_tokens": 2}}});
    trajectory("t", vec![trace(0, json!(1.0), json!({})), trace(1, json!(null), side)])
}

fn selected(selection: &mut Selection, trajectory: &Trajectory) -> Vec<u32> {
    let mut taken = Vec::new();
    selection
        .of_session(trajectory, |row, _| {
            taken.push(row.index);
            Ok(())
        })
        .unwrap();
    taken
}

fn lines(write: impl FnOnce(&mut Vec<u8>)) -> Vec<Value> {
    let mut out = Vec::new();
    write(&mut out);
    let text = String::from_utf8(out).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn write_all(writer: &mut dyn RowWriter, trajectory: &Trajectory) {
    Selection::default().of_session(trajectory, |row, _| writer.write(row)).unwrap();
    writer.finish().unwrap();
}

#[test]
fn promise_1_every_trained_token_is_written_or_left_out_for_a_reason() {
    let session = two_traces();
    let cases = [
        (Filters::default(), vec![0, 1], None),
        (Filters { min_reward: Some(0.5), ..Filters::default() }, vec![0], Some(LeftOut::NoReward)),
        (Filters { max_reward: Some(2.0), ..Filters::default() }, vec![0], Some(LeftOut::NoReward)),
        (
            Filters { roles: vec![polar_types::CallRole::Main], ..Filters::default() },
            vec![0],
            Some(LeftOut::Role),
        ),
        (
            Filters { reasons: vec![polar_types::EndReason::Cancelled], ..Filters::default() },
            vec![],
            Some(LeftOut::Status),
        ),
        (Filters { max_tokens: Some(4), ..Filters::default() }, vec![], Some(LeftOut::TooLong)),
    ];
    for (filters, expected, reason) in cases {
        let mut selection = Selection::by(filters);
        assert_eq!(selected(&mut selection, &session), expected, "{reason:?}");
        let counts = selection.counts();
        assert!(counts.is_conserved(), "{counts:?}");
        assert_eq!(counts.trained, 2 * expected.len() as u64);
        assert_eq!(counts.left_out.keys().copied().collect::<Vec<_>>(), Vec::from_iter(reason));
    }
    let mut out_of_range = Selection::by(Filters { min_reward: Some(1.5), ..Filters::default() });
    selected(&mut out_of_range, &session);
    assert_eq!(out_of_range.counts().left_out[&LeftOut::Reward], 1);
    let mut once = Selection::by(Filters { dedupe: true, ..Filters::default() });
    assert_eq!(selected(&mut once, &session), [0, 1]);
    assert_eq!(selected(&mut once, &session), [0; 0]);
    let said = once.counts().to_string();
    assert_eq!(
        said,
        "2 rows of 2 sessions written, with 4 of 8 trained tokens; left out: 2 duplicate"
    );
    // A trajectory whose traces hold less than it counts is seen.
    let mut short = two_traces();
    short.tokens.trained += 1;
    let mut selection = Selection::default();
    selected(&mut selection, &short);
    assert!(!selection.counts().is_conserved());
}

#[test]
fn a_group_is_on_one_side_whatever_else_is_exported() {
    let mut test = 0;
    for number in 0..1000 {
        let session = trajectory(&format!("group-{number}"), vec![trace(0, json!(1), json!({}))]);
        let side = || {
            let mut found = None;
            let mut selection = Selection::by(Filters { held_out: 0.1, ..Filters::default() });
            selection
                .of_session(&session, |_, side| {
                    found = Some(side);
                    Ok(())
                })
                .unwrap();
            found.unwrap()
        };
        assert_eq!(side(), side());
        test += u32::from(side() == Side::Test);
    }
    assert!((70..130).contains(&test), "{test} of 1000 groups are held out");
}

#[test]
fn parquet_rows_hold_ids_masks_logprobs_and_versions() {
    let mut out = Vec::new();
    // So small that each row is a group of its own.
    let mut writer = ParquetWriter::with_group_bytes(&mut out, 1).unwrap();
    write_all(&mut writer, &two_traces());
    drop(writer);
    let file = SerializedFileReader::new(bytes::Bytes::from(out)).unwrap();
    assert_eq!(file.metadata().num_row_groups(), 2);
    let rows: Vec<_> = file.get_row_iter(None).unwrap().map(Result::unwrap).collect();
    let place = |name: &str| columns().iter().position(|column| column.name == name).unwrap();
    let shown =
        |row: usize, name: &str| rows[row].to_json_value().as_object().unwrap()[name].clone();
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[1].get_string(place("role")).unwrap(), "sub_agent");
    assert_eq!(rows[1].get_long(place("parent")).unwrap(), 0);
    assert_eq!(shown(0, "parent"), Value::Null);
    assert_eq!(shown(1, "reward"), Value::Null);
    assert_eq!(shown(0, "reward"), json!(1.0));
    assert_eq!(shown(0, "prompt_ids"), json!([1, 2]));
    assert_eq!(shown(1, "response_ids"), json!([3, 4, 6]));
    assert_eq!(shown(0, "loss_mask"), json!([1, 0, 1]));
    assert_eq!(shown(0, "response_logprobs"), json!([-0.5, null, -0.25]));
    assert_eq!(shown(0, "response_versions"), json!(["v1", null, "v2"]));
    assert_eq!(shown(0, "turn_scores"), json!([]));
    assert_eq!(shown(0, "turn_ends"), json!([1, 3]));
    assert_eq!(shown(0, "calls"), json!(["c00000", "c00001"]));
    assert_eq!(shown(0, "reason"), "completed");
}

#[test]
fn an_id_that_the_column_cannot_hold_is_an_error() {
    let ids = json!({"prompt_ids": [4_000_000_000_u32]});
    let session = trajectory("t", vec![trace(0, json!(1), ids)]);
    let mut writer = ParquetWriter::new(Vec::new()).unwrap();
    let refused = Selection::default().of_session(&session, |row, _| writer.write(row));
    assert!(refused.unwrap_err().to_string().contains("4000000000"));
}

#[test]
fn messages_are_openais_with_one_type_for_content() {
    let found = lines(|out| write_all(&mut MessagesWriter::new(out), &two_traces()));
    assert_eq!(found.len(), 2);
    let messages = found[0]["messages"].as_array().unwrap();
    let roles: Vec<_> = messages.iter().map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool", "assistant"]);
    assert_eq!(messages[1]["content"], "ab");
    assert_eq!(messages[2]["tool_calls"][0]["function"]["arguments"], "{\"p\": 1}");
    let tools: Value = serde_json::from_str(found[0]["tools"].as_str().unwrap()).unwrap();
    assert_eq!(tools[0]["function"]["name"], "ls");
    assert_eq!(found[1]["reward"], Value::Null);
}

#[test]
fn atif_has_its_own_fields_and_extra_for_the_rest() {
    let found = lines(|out| write_all(&mut AtifWriter::new(out, "pi"), &two_traces()));
    let document = &found[0];
    assert_eq!(document["schema_version"], "ATIF-v1.4");
    assert_eq!(document["agent"]["name"], "pi");
    let steps = document["steps"].as_array().unwrap();
    let told: Vec<_> = steps.iter().map(|s| (s["step_id"].clone(), s["source"].clone())).collect();
    let expected = ["system", "user", "agent", "agent"];
    let expected: Vec<_> =
        expected.iter().enumerate().map(|(i, source)| (json!(i + 1), json!(source))).collect();
    assert_eq!(told, expected);
    let agent = &steps[2];
    assert_eq!(
        agent["tool_calls"],
        json!([
        {"tool_call_id": "x", "function_name": "ls", "arguments": {"p": 1}}])
    );
    assert_eq!(
        agent["observation"]["results"],
        json!([{"content": "file", "source_call_id": "x"}])
    );
    assert_eq!(agent["reasoning_content"], "hm");
    assert_eq!(
        agent["metrics"],
        json!({
        "completion_tokens": 1, "completion_token_ids": [3], "logprobs": [-0.5]})
    );
    assert_eq!(steps[3]["metrics"]["completion_token_ids"], json!([5]));
    assert_eq!(document["extra"]["loss_mask"], json!([1, 0, 1]));
    assert_eq!(document["extra"]["lineage"]["role"], "main");

    // A logprob that is missing: the list is not there at all.
    let hole = json!({"response_logprobs": [null, null, -0.25]});
    let session = trajectory("t", vec![trace(0, json!(1), hole)]);
    let found = lines(|out| write_all(&mut AtifWriter::new(out, "pi"), &session));
    assert_eq!(found[0]["steps"][2]["metrics"]["logprobs"], Value::Null);
    assert_eq!(found[0]["steps"][3]["metrics"]["logprobs"], json!([-0.25]));
}

/// Run with `POLAR_WRITE_DOCS=1`, it writes the table instead.
#[test]
fn documentation_has_every_column() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/export.md");
    let document = std::fs::read_to_string(&path).unwrap();
    let (begin, end) = ("<!-- columns -->\n", "<!-- /columns -->");
    let (before, rest) = document.split_once(begin).unwrap();
    let (found, after) = rest.split_once(end).unwrap();
    let mut table = "| column | is | |\n| --- | --- | --- |\n".to_owned();
    for column in columns() {
        table.push_str(&format!(
            "| `{}` | {} | {} |\n",
            column.name,
            column.type_name(),
            column.about
        ));
    }
    if std::env::var_os("POLAR_WRITE_DOCS").is_some() {
        std::fs::write(path, format!("{before}{begin}{table}{end}{after}")).unwrap();
        return;
    }
    assert_eq!(found, table, "run this test with POLAR_WRITE_DOCS=1");
}
