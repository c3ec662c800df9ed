//! The shipped adapters with the programs they are for, unmodified, from the registry.
//!
//! Installations are kept below the target folder, so that only the first run downloads.

use crate::ground::{Ground, within};
use polar_session::HarnessAdapter;
use polar_session::check::{CheckOptions, Scenario, Verdict, check_harness};
use polar_types::HarnessSpec;

async fn passes_everything(name: &str) {
    let ground = Ground::new().await;
    let options = CheckOptions {
        id: "check".to_owned(),
        adapter: HarnessAdapter::shipped(name).unwrap(),
        harness: HarnessSpec::named(name),
        scenario: Scenario::shipped("write_file").unwrap(),
        engine: None,
        token_mode: false,
        provider: ground.provider.clone(),
        image: None,
        cache: env!("CARGO_TARGET_TMPDIR").into(),
        folder: tempfile::tempdir_in(ground.dir.path()).unwrap().keep(),
        run_seconds: 90.0,
    };
    let report = within(check_harness(options)).await.unwrap();
    let all_passed = report.findings.iter().all(|finding| finding.verdict == Verdict::Passed);
    assert!(all_passed, "{:#?}\n{:#?}\n{}", report.findings, report.session, report.output);
    assert_eq!((report.session.calls, report.session.traces), (3, 1));
    assert_eq!(report.session.tokens.trained, report.session.tokens.sampled);
}

#[tokio::test(flavor = "multi_thread")]
async fn pi_works_and_makes_one_trace() {
    passes_everything("pi").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claude_code_works_and_makes_one_trace() {
    passes_everything("claude_code").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gemini_cli_works_and_makes_one_trace() {
    passes_everything("gemini_cli").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn codex_works_and_makes_one_trace() {
    passes_everything("codex").await;
}
