//! The prefix tree: what it shares, what it must not share, and that its check finds changes.
#![allow(clippy::unwrap_used)] // Tests: a panic is the report.

mod histories;
mod sessions;

use histories::{History, history};
use polar_record::{CallRecord, RecordedSession};
use polar_trajectory::{Built, Violation, build, unroll, verify, verify_alone};
use polar_types::{
    CallId, CallRole, TokenTree, TrainingSizes, Trajectory, TrajectoryStrategy, TreeNode,
    WeightSpan,
};
use proptest::prelude::*;
use serde_json::{Value, json};
use sessions::{call, recorded, said, user};

fn of(session: &RecordedSession, strategy: TrajectoryStrategy) -> Trajectory {
    let Built { trajectory, .. } = build(session, strategy, Some(0.5));
    assert_eq!(verify(&trajectory, session), Ok(()));
    trajectory
}

fn planted(session: &RecordedSession) -> (Trajectory, TokenTree) {
    let mut trajectory = of(session, TrajectoryStrategy::PrefixTree);
    let tree = trajectory.tree.clone().unwrap();
    assert!(trajectory.traces.is_empty());
    trajectory.tree = Some(tree.clone());
    (trajectory, tree)
}

/// Nodes from a root to the last one of a lineage.
fn path(tree: &TokenTree, lineage: usize) -> Vec<&TreeNode> {
    let mut at = Some(tree.lineages[lineage].last_node);
    let mut path = Vec::new();
    while let Some(node) = at {
        path.insert(0, &tree.nodes[node as usize]);
        at = tree.nodes[node as usize].parent;
    }
    path
}

fn ids(tree: &TokenTree, lineage: usize) -> Vec<u32> {
    path(tree, lineage).into_iter().flat_map(|node| node.ids.clone()).collect()
}

fn record<'a>(history: &'a History, id: &CallId) -> &'a CallRecord {
    &history.iter().find(|(record, _)| record.meta.call_id == *id).unwrap().0
}

/// Prompt and sampled ids.
fn had(record: &CallRecord) -> Vec<u32> {
    [record.prompt_ids.clone().unwrap(), record.sampled_ids.clone().unwrap()].concat()
}

fn shared(left: &[u32], right: &[u32]) -> usize {
    left.iter().zip(right).take_while(|(left, right)| left == right).count()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..Default::default() })]

    #[test]
    fn promise_1_every_sampled_token_is_in_one_node_or_counted(history in history()) {
        let session = recorded(&history);
        let (trajectory, tree) = planted(&session);
        let merged = of(&session, TrajectoryStrategy::PrefixMerging);
        prop_assert_eq!(&trajectory.tokens, &merged.tokens);
        let masks = tree.nodes.iter().flat_map(|node| &node.loss_mask);
        prop_assert_eq!(masks.map(|mask| u64::from(*mask)).sum::<u64>(), merged.tokens.trained);
        // Each call's tokens are its own nodes' and nobody else's.
        for lineage in &tree.lineages {
            for id in &lineage.calls {
                let nodes = tree.nodes.iter().filter(|node| node.calls.contains(id));
                let sampled = record(&history, id).sampled_ids.as_ref().unwrap().len();
                prop_assert!(nodes.map(|node| node.ids.len()).sum::<usize>() >= sampled);
            }
        }
    }

    #[test]
    fn promise_2_the_path_of_every_lineage_is_what_the_engine_had(history in history()) {
        let (_, tree) = planted(&recorded(&history));
        for (number, lineage) in tree.lineages.iter().enumerate() {
            let ids = ids(&tree, number);
            for id in &lineage.calls {
                let had = had(record(&history, id));
                prop_assert_eq!(&ids[..had.len()], &had[..]);
            }
            let last = had(record(&history, lineage.calls.last().unwrap()));
            prop_assert_eq!(ids, last);
        }
    }

    #[test]
    fn unrolled_it_is_what_prefix_merging_makes(history in history()) {
        let session = recorded(&history);
        let (trajectory, _) = planted(&session);
        let merged = of(&session, TrajectoryStrategy::PrefixMerging);
        prop_assert_eq!(unroll(&trajectory).unwrap(), merged.traces.clone());
        prop_assert_eq!(unroll(&merged).unwrap(), merged.traces);
    }

    #[test]
    fn every_prompt_shares_all_that_an_earlier_sequence_has_of_it(history in history()) {
        let session = recorded(&history);
        let (trajectory, tree) = planted(&session);
        let sequences: Vec<Vec<u32>> =
            (0..tree.lineages.len()).map(|number| ids(&tree, number)).collect();
        let (mut roots, mut unique) = (0, 0);
        for (number, sequence) in sequences.iter().enumerate() {
            let prompt = &sequence[..tree.lineages[number].prompt_tokens as usize];
            let most = sequences[..number].iter().map(|other| shared(other, prompt)).max();
            roots += u64::from(most.unwrap_or(0) == 0);
            unique += (sequence.len() - most.unwrap_or(0)) as u64;
        }
        prop_assert_eq!(tree.nodes.iter().map(|node| node.ids.len() as u64).sum::<u64>(), unique);
        let merged = of(&session, TrajectoryStrategy::PrefixMerging);
        let alone = of(&session, TrajectoryStrategy::PerRequest);
        let size = |trajectory: &Trajectory| {
            let tokens = |trace: &polar_types::Trace| trace.prompt_ids.len() + trace.response_ids.len();
            let traces = &trajectory.traces;
            (traces.len() as u64, traces.iter().map(|trace| tokens(trace) as u64).sum::<u64>())
        };
        let sizes = TrainingSizes::new(size(&alone), size(&merged), (roots, unique));
        for trajectory in [&trajectory, &merged, &alone] {
            prop_assert_eq!(trajectory.sizes.as_ref(), Some(&sizes));
        }
    }

    /// A tree that was tampered with anywhere is not accepted.
    #[test]
    fn the_check_finds_every_single_change(history in history(), pick in any::<usize>()) {
        let session = recorded(&history);
        let (trajectory, tree) = planted(&session);
        let Some(node) = pick.checked_rem(tree.nodes.len()) else { return Ok(()) };
        let at = pick / 7 % tree.nodes[node].ids.len();
        type Change = fn(&mut TokenTree, usize, usize);
        let changes: [Change; 16] = [
            |tree, node, at| tree.nodes[node].ids[at] ^= 1,
            |tree, node, at| tree.nodes[node].loss_mask[at] ^= 1,
            |tree, node, at| tree.nodes[node].logprobs[at] = match tree.nodes[node].logprobs[at] {
                None => Some(0.0),
                Some(value) => Some(f32::from_bits(value.to_bits() ^ 1)),
            },
            |tree, node, at| { tree.nodes[node].ids.remove(at); },
            |tree, node, at| {
                tree.nodes[node].ids.remove(at);
                tree.nodes[node].loss_mask.remove(at);
                tree.nodes[node].logprobs.remove(at);
            },
            |tree, node, _| tree.nodes[node].parent = match tree.nodes[node].parent {
                None => Some(node as u32),
                Some(_) => None,
            },
            |tree, node, _| tree.nodes[node].calls.push(CallId::of_index(99)),
            |tree, node, _| tree.nodes[node].role = CallRole::Probe,
            |tree, node, _| { tree.nodes.remove(node); },
            |tree, node, _| { let copy = tree.nodes[node].clone(); tree.nodes.push(copy); },
            |tree, node, _| {
                let end = tree.nodes[node].ids.len() as u64;
                let spans = &mut tree.nodes[node].weight_versions;
                if spans.pop().is_none() {
                    spans.push(WeightSpan { version: None, start: 0, end });
                }
            },
            |tree, node, _| { let at = node % tree.lineages.len(); tree.lineages[at].calls.pop(); },
            |tree, node, _| { let at = node % tree.lineages.len(); tree.lineages.remove(at); },
            |tree, node, _| { let at = node % tree.lineages.len(); tree.lineages[at].last_node += 1; },
            |tree, node, _| { let at = node % tree.lineages.len(); tree.lineages[at].prompt_tokens += 1; },
            |tree, node, _| {
                let at = node % tree.lineages.len();
                let copy = tree.lineages[at].clone();
                tree.lineages.push(copy);
            },
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let mut changed = tree.clone();
            change(&mut changed, node, at);
            let changed = Trajectory { tree: Some(changed), ..trajectory.clone() };
            prop_assert!(verify(&changed, &session).is_err(), "change {number} is not found");
            // Whatever it is, it is no reason to break off.
            let _ = unroll(&changed);
        }
    }

    /// Pictures that are no tokens of their own: 9 stands for one, whichever it is.
    #[test]
    fn promise_2_only_what_shows_the_same_pictures_is_shared(
        looks in prop::collection::vec((0usize..8, prop::collection::vec(0u32..3, 0..3)), 1..12),
    ) {
        let mut past: Vec<(Vec<Value>, Vec<u32>)> = vec![(Vec::new(), vec![1])];
        let mut calls = Vec::new();
        for (from, pictures) in looks {
            let (mut messages, mut ids) = past[from % past.len()].clone();
            for picture in pictures {
                let image = json!({"type": "image_url", "image_url": {"url": picture}});
                messages.push(json!({"role": "user", "content": [image]}));
                ids.extend([9, 2]);
            }
            messages.push(user("go on"));
            ids.push(3);
            calls.push((call(&messages, said("a"), &ids, &[4]), Some(true)));
            messages.push(said("a"));
            ids.push(4);
            past.push((messages, ids));
        }
        let session = recorded(&calls);
        let (trajectory, tree) = planted(&session);
        let merged = of(&session, TrajectoryStrategy::PrefixMerging);
        prop_assert_eq!(unroll(&trajectory).unwrap(), merged.traces);
        // What stands for two different pictures is not in one node.
        let pictures = |id: &CallId| -> Vec<Value> {
            let record = &calls[id.to_string()[1..].parse::<usize>().unwrap_or(0)].0;
            let parts = record.messages.iter().map(|message| message["content"][0].clone());
            parts.filter(|part| !part.is_null()).collect()
        };
        let mut shown: std::collections::HashMap<(u32, usize), Value> = Default::default();
        for lineage in &tree.lineages {
            let mut pictures = pictures(lineage.calls.last().unwrap()).into_iter();
            let mut nodes = Vec::new();
            let mut at = Some(lineage.last_node);
            while let Some(node) = at {
                nodes.insert(0, node);
                at = tree.nodes[node as usize].parent;
            }
            for node in nodes {
                for (at, id) in tree.nodes[node as usize].ids.iter().enumerate() {
                    if *id == 9 {
                        let picture = pictures.next().unwrap();
                        let known = shown.entry((node, at)).or_insert_with(|| picture.clone());
                        prop_assert_eq!(&*known, &picture);
                    }
                }
            }
        }
    }
}

#[test]
fn branches_share_what_is_before_them_and_train_it_once() {
    let start = call(&[user("a")], said("x"), &[1, 2], &[10, 11]);
    let go = |word: &str, tail: u32, sampled: u32| {
        call(&[user("a"), said("x"), user(word)], said("y"), &[1, 2, 10, 11, tail], &[sampled])
    };
    // The last one leaves in the middle of what the first one sampled.
    let cut = call(&[user("a"), said("z")], said("y"), &[1, 2, 10, 5], &[30]);
    let all = [start, go("b", 3, 20), go("c", 4, 21), cut].map(|call| (call, Some(true)));
    let (trajectory, tree) = planted(&recorded(&all));
    let shape: Vec<_> = tree
        .nodes
        .iter()
        .map(|node| (node.parent, node.ids.clone(), node.loss_mask.clone(), node.calls.len()))
        .collect();
    let expected = [
        (None, vec![1, 2, 10], vec![0, 0, 1], 1),
        (Some(0), vec![11], vec![1], 1),
        (Some(1), vec![3, 20], vec![0, 1], 1),
        (Some(1), vec![4, 21], vec![0, 1], 1),
        (Some(0), vec![5, 30], vec![0, 1], 1),
    ];
    assert_eq!(shape, expected);
    let sizes = trajectory.sizes.unwrap();
    assert_eq!((sizes.per_request.samples, sizes.per_request.tokens), (4, 4 + 6 + 6 + 5));
    assert_eq!((sizes.prefix_merging.samples, sizes.prefix_merging.tokens), (3, 6 + 6 + 5));
    assert_eq!((sizes.prefix_tree.samples, sizes.prefix_tree.tokens), (1, 10));
}

#[test]
fn promise_1_what_two_calls_sampled_alike_is_there_for_each() {
    let ask = || call(&[user("a")], said("x"), &[1, 2], &[10]);
    let mut again = ask();
    again.logprobs = vec![Some(-0.25)];
    let (trajectory, tree) = planted(&recorded(&[(ask(), Some(true)), (again, Some(true))]));
    assert_eq!(trajectory.tokens.trained, 2);
    let logprobs: Vec<_> =
        tree.nodes.iter().map(|node| (node.parent, &node.logprobs[..])).collect();
    let first = -10.0 / 7.0;
    let expected: [(Option<u32>, &[Option<f32>]); 3] =
        [(None, &[None, None]), (Some(0), &[Some(first)]), (Some(0), &[Some(-0.25)])];
    assert_eq!(logprobs, expected);
}

#[test]
fn a_long_stem_with_many_branches_takes_what_is_new_in_each() {
    let stem: Vec<u32> = (0..20_000).collect();
    let branch = |number: u32| {
        let mut ids = stem.clone();
        ids.extend([50_000 + number; 10]);
        let messages = [user("a"), user(&number.to_string())];
        (call(&messages, said(&number.to_string()), &ids, &[7]), Some(true))
    };
    let calls: Vec<_> = (0..100).map(branch).collect();
    let session = recorded(&calls);
    let before = session.tokens().work();
    let built = build(&session, TrajectoryStrategy::PrefixTree, None);
    let unique = 20_000 + 100 * 11;
    assert_eq!(session.tokens().work() - before, unique, "each token is copied once");
    let sizes = built.trajectory.sizes.as_ref().unwrap();
    assert_eq!((sizes.prefix_tree.tokens, sizes.prefix_merging.tokens), (unique, 100 * 20_011));
    let before = session.tokens().work();
    assert_eq!(verify(&built.trajectory, &session), Ok(()));
    assert_eq!(session.tokens().work() - before, unique, "each token is compared once");
}

#[test]
fn without_records_a_trajectory_is_held_against_itself() {
    let start = call(&[user("a")], said("x"), &[1, 2], &[10, 11]);
    let session = recorded(&[(start, Some(true))]);
    let (trajectory, tree) = planted(&session);
    assert_eq!(verify_alone(&trajectory), Ok(()));
    let mut other = tree.clone();
    other.nodes[0].loss_mask[0] = 1;
    let changed = Trajectory { tree: Some(other), ..trajectory.clone() };
    let place = "node 0".to_owned();
    assert_eq!(verify_alone(&changed), Err(Violation::Mask { place, position: 0 }));
    let mut other = tree;
    other.lineages[0].calls.push(CallId::of_index(0));
    let changed = Trajectory { tree: Some(other), ..trajectory };
    let found = verify_alone(&changed).unwrap_err();
    assert_eq!(found.promise().map(|promise| promise as u8), Some(1), "{found}");
}
