//! The check of a harness finds what is wrong and names the mend.

use crate::ground::{Ground, within};
use polar_session::HarnessAdapter;
use polar_session::check::{CheckOptions, CheckReport, Finding, Scenario, Verdict, check_harness};
use polar_types::HarnessSpec;
use serde_json::{Value, json};

const AGENT: &str = include_str!("agent.py");

/// As a template that says just this.
fn verbatim(text: &str) -> String {
    format!("{{% raw %}}{text}{{% endraw %}}")
}

async fn check(ground: &Ground, changes: Value) -> CheckReport {
    let mut adapter = json!({
        "name": "mine", "version": "1", "provider": "openai_chat", "model": "m",
        "command": ["python3", "{{ home }}/agent.py"],
        "stdin": "{{ instruction }}",
        "env_vars": {
            "OPENAI_BASE_URL": "{{ base_url }}/v1",
            "OPENAI_API_KEY": "{{ api_key }}",
            "OPENAI_MODEL": "{{ model }}",
        },
        "files": [{"path": "{{ home }}/agent.py", "content": verbatim(AGENT)}],
    });
    for (key, value) in changes.as_object().unwrap() {
        adapter[key] = value.clone();
    }
    let options = CheckOptions {
        id: "check".to_owned(),
        adapter: HarnessAdapter::from_json("mine", &adapter).unwrap(),
        harness: HarnessSpec::named("mine"),
        scenario: Scenario::shipped("write_file").unwrap(),
        engine: None,
        token_mode: false,
        provider: ground.provider.clone(),
        image: None,
        cache: ground.dir.path().join("cache"),
        folder: tempfile::tempdir_in(ground.dir.path()).unwrap().keep(),
        run_seconds: 20.0,
    };
    within(check_harness(options)).await.unwrap()
}

fn finding<'a>(report: &'a CheckReport, subject: &str) -> &'a Finding {
    let found = report.findings.iter().find(|finding| finding.subject == subject);
    found.unwrap_or_else(|| panic!("nothing about {subject} in {:#?}", report.findings))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_good_harness_passes_everything() {
    let ground = Ground::new().await;
    let report = check(&ground, json!({})).await;
    assert!(report.passed(), "{:#?}", report.findings);
    assert!(report.findings.iter().all(|f| f.verdict == Verdict::Passed), "{report:#?}");
    assert_eq!(finding(&report, "requests").found, "3 model calls");
    assert_eq!(finding(&report, "dialect").found, "chat");
    assert_eq!(finding(&report, "streaming").found, "0 of 3 calls");
    assert!(finding(&report, "tool calls").found.contains("results came back (bash)"));
    assert!(finding(&report, "traces").found.starts_with("1 from 3 calls, 1 lineages"));
    assert!(report.output.contains("hello.txt holds hello"));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_fault_is_named_with_its_mend() {
    let ground = Ground::new().await;
    let agent = |edit: &[(&str, &str)]| {
        let edited = edit.iter().fold(AGENT.to_owned(), |text, (from, to)| {
            assert!(text.contains(from), "{from}");
            text.replace(from, to)
        });
        json!({"files": [{"path": "{{ home }}/agent.py", "content": verbatim(&edited)}]})
    };
    let table = [
        (json!({"command": ["no-such-agent"]}), "started", Verdict::Failed, "command"),
        (json!({"command": ["true"]}), "requests", Verdict::Failed, "base_url"),
        (json!({"provider": "anthropic_messages"}), "dialect", Verdict::Failed, "provider"),
        (
            agent(&[("    for call in reply", "    break\n    for call in reply")]),
            "tool calls",
            Verdict::Failed,
            "without asking",
        ),
        (
            agent(&[(
                "messages.append(reply)",
                "messages.append(reply); messages[0]['content'] += '!'",
            )]),
            "traces",
            Verdict::Warning,
            "history",
        ),
        (
            json!({"roles": [{"name": "all", "role": "title", "when": {"has_tools": true}}]}),
            "roles",
            Verdict::Failed,
            "`roles`",
        ),
        // A prompt that no engine takes, and then the work.
        (
            agent(&[(
                "messages = [",
                "try:\n    ask([{'role': 'user', 'content': 'long ' * 200000}])\n\
                 except OSError:\n    pass\n\
                 messages = [",
            )]),
            "roles",
            Verdict::Warning,
            "refused",
        ),
        (json!({"command": ["sleep", "600"]}), "end", Verdict::Failed, "stdin"),
    ];
    for (changes, subject, verdict, mend) in table {
        let report = check(&ground, changes.clone()).await;
        let found = finding(&report, subject);
        assert_eq!(found.verdict, verdict, "{changes}: {:#?}", report.findings);
        let said = found.mend.as_deref().unwrap_or_default();
        assert!(said.contains(mend), "{changes}: {said}");
    }
}
