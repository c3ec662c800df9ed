//! Fuzzing: builds the targets of `fuzz/` with coverage and runs each for a while.
//!
//! The compiler's own coverage and libFuzzer are all that is needed, so a stable toolchain does.

use crate::command::{Command, Counts, root};
use anyhow::{Context, Result};
use std::fs;

const TARGETS: [&str; 7] = ["chat", "messages", "responses", "google", "sse", "journal", "parsers"];

/// Where builds, inputs that reach something new, and findings are kept.
const FOLDER: &str = "target/fuzz";

/// What `cargo fuzz` sets, but for the sanitizers, which look for what safe Rust cannot do.
const COVERAGE: &str = "-Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares \
    --cfg=fuzzing";

/// Runs each target for `$POLAR_FUZZ_SECONDS`, or 20. A target that finds something counts as
/// one failed test; the input is kept below `target/fuzz/findings`.
pub(crate) fn run() -> Result<Counts> {
    let seconds = std::env::var("POLAR_FUZZ_SECONDS").unwrap_or_else(|_| "20".to_owned());
    let seconds: u32 = seconds.parse().context("POLAR_FUZZ_SECONDS is not a whole number")?;
    let binaries = build()?;
    let mut counts = Counts::default();
    for target in TARGETS {
        match fuzz(&binaries, target, seconds) {
            Ok(()) => counts.passed += 1,
            Err(error) => {
                println!("━━ {target}: {error:#}");
                counts.failed += 1;
            }
        }
    }
    Ok(counts)
}

/// Builds all targets, and says in which folder they are.
fn build() -> Result<String> {
    let host = Command::new("rustc", &["--print", "host-tuple"]).output()?;
    let args = ["build", "--quiet", "--release", "--manifest-path=fuzz/Cargo.toml"];
    // With a target named, the flags are not for build scripts and procedural macros.
    Command::new("cargo", &args)
        .args(&["--target", &host, "--target-dir", FOLDER])
        .env("RUSTFLAGS", COVERAGE)
        .run()?;
    Ok(format!("{FOLDER}/{host}/release"))
}

fn fuzz(binaries: &str, target: &str, seconds: u32) -> Result<()> {
    let folder = |name: &str| -> Result<String> {
        let path = format!("{FOLDER}/{name}/{target}");
        fs::create_dir_all(root().join(&path)).with_context(|| format!("create {path}"))?;
        Ok(path)
    };
    let (corpus, seeds, findings) = (folder("corpus")?, folder("seeds")?, folder("findings")?);
    let options = [
        format!("-max_total_time={seconds}"),
        format!("-artifact_prefix={findings}/"),
        "-timeout=20".to_owned(),
        "-rss_limit_mb=2048".to_owned(),
        "-verbosity=0".to_owned(),
        "-print_funcs=0".to_owned(),
        "-print_final_stats=1".to_owned(),
    ];
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    // What reaches something new goes into the first folder.
    Command::new(root().join(binaries).join(target), &[&corpus, &seeds])
        .args(&options)
        .env("POLAR_FUZZ_SEEDS", &seeds)
        .run()?;
    Ok(())
}
