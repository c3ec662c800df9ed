//! The evaluator of Harbor (Terminal-Bench) tasks.
//!
//! As Harbor does it: the script is made executable and run, what it prints is kept beside its
//! reward, and `reward.json` or `reward.txt` says what the work is worth, whatever the script's
//! exit code is. Where neither is there, the work is worth nothing: what keeps a script from its
//! end can be the agent's.

use super::command::too_late;
use super::{Place, Verdict, answer};
use crate::attempt::Attempt;
use crate::failure::Stop;
use polar_sandbox::ExecEnd;
use polar_types::HarborEvaluator;
use serde_json::Value;

/// Runs the script in `$POLAR_SCRIPT`, with an empty folder for its reward.
const RUN: &str = r#"rm -rf -- "$POLAR_LOGS" && mkdir -p -- "$POLAR_LOGS" || exit 97
chmod +x -- "$POLAR_SCRIPT" || exit 96
script=$POLAR_SCRIPT
unset POLAR_SCRIPT POLAR_LOGS
exec "$script""#;
const NO_SCRIPT: i32 = 96;
const NO_LOGS: i32 = 97;
/// Prints the file `$1`, when it is there.
const READ: &str = r#"[ -f "$1" ] || exit 11; exec cat -- "$1""#;
const ABSENT: i32 = 11;
/// Most bytes of a file that tells a reward.
const MOST_REWARD: u64 = 1 << 20;

impl Attempt {
    pub(super) async fn evaluate_harbor(
        &self,
        place: &Place<'_>,
        harbor: &HarborEvaluator,
    ) -> Result<Verdict, Stop> {
        let mut env = harbor.env.clone();
        env.insert("POLAR_SCRIPT".to_owned(), harbor.script.clone());
        env.insert("POLAR_LOGS".to_owned(), harbor.logs.clone());
        let limit = self.runner.config.output_limit;
        let workdir = harbor.workdir.as_deref();
        let run = self.run_graded(place, RUN, workdir, &env, limit).await?;
        let code = match run.exit_code(place.seconds) {
            Ok(NO_SCRIPT) => {
                return Ok(Verdict::failed(format!(
                    "there is no {} to run; steps of `grading.setup` bring the tests",
                    harbor.script
                )));
            }
            Ok(NO_LOGS) if self.evaluator.had(&harbor.logs) => {
                return Ok(Verdict::zero(format!(
                    "{} cannot be made any more, as it could before the agent ran; see grader.log",
                    harbor.logs
                )));
            }
            Ok(NO_LOGS) => {
                return Ok(Verdict::failed(format!(
                    "{} cannot be made in this sandbox; a container runtime lets it be",
                    harbor.logs
                )));
            }
            Ok(code) => code,
            Err(why) => return Ok(Verdict::failed(why)),
        };
        let json = self.read_reward(place, &format!("{}/reward.json", harbor.logs)).await?;
        let text = self.read_reward(place, &format!("{}/reward.txt", harbor.logs)).await?;
        let (json, text) = match (json, text) {
            (Ok(json), Ok(text)) => (json, text),
            (Err(late), _) | (_, Err(late)) => return Ok(Verdict::failed(late)),
        };
        Ok(match reward(json.as_deref(), text.as_deref(), harbor.reward_key.as_deref()) {
            Ok(Some(reward)) => Verdict::of(reward),
            Ok(None) => Verdict::zero(format!(
                "the script ended with exit code {code} and left neither reward.json nor \
                 reward.txt in {}; see grader.log",
                harbor.logs
            )),
            Err(problem) => Verdict::zero(format!("{problem}; see grader.log")),
        })
    }

    /// A file that tells a reward, where it is there; why it could not be looked at otherwise.
    async fn read_reward(
        &self,
        place: &Place<'_>,
        path: &str,
    ) -> Result<Result<Option<String>, String>, Stop> {
        let argv = ["sh", "-c", READ, "sh", path].map(str::to_owned).to_vec();
        Ok(match self.read_graded(place, None, argv, MOST_REWARD).await? {
            (ExecEnd::Exited(ABSENT), _) => Ok(None),
            (ExecEnd::TimedOut, _) => Err(too_late(path)),
            (_, read) => Ok(read.ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())),
        })
    }
}

/// The reward in the files, of which the first counts where it has one.
fn reward(
    json: Option<&str>,
    text: Option<&str>,
    key: Option<&str>,
) -> Result<Option<f64>, String> {
    let of_text = || match text {
        None => Ok(None),
        Some(text) => match text.trim().parse::<f64>() {
            Ok(reward) if reward.is_finite() => Ok(Some(reward)),
            _ => {
                let told: String = text.trim().chars().take(80).collect();
                Err(format!("reward.txt holds no finite number: {told:?}"))
            }
        },
    };
    let Some(json) = json else { return of_text() };
    let fields = match answer::read(json.as_bytes()) {
        Ok(Value::Object(fields)) => fields,
        Ok(_) => return Err("reward.json is no JSON object".to_owned()),
        Err(problem) => return Err(format!("reward.json: {problem}")),
    };
    let is_none = |value: &Value| value.as_str().is_some_and(answer::is_no_number);
    if let Some((name, value)) = fields.iter().find(|(_, value)| is_none(value)) {
        return Err(format!("reward.json: {name} must be a finite number, not {value}"));
    }
    let number = |value: &Value| value.as_f64().filter(|number| number.is_finite());
    if let Some(key) = key {
        let named = fields.get(key).and_then(number);
        return named.map(Some).ok_or_else(|| format!("reward.json has no number {key:?}"));
    }
    if let Some(reward) = fields.get("reward").and_then(number) {
        return Ok(Some(reward));
    }
    if let Ok(Some(reward)) = of_text() {
        return Ok(Some(reward));
    }
    let numbers: Vec<f64> = fields.values().filter_map(number).collect();
    match numbers.len() {
        0 => Err("reward.json has no number".to_owned()),
        length => Ok(Some(numbers.iter().sum::<f64>() / length as f64)),
    }
}

#[cfg(test)]
mod tests {
    use super::reward;

    #[test]
    fn rewards_are_read_as_harbor_reads_them() {
        let table = [
            (None, Some("1\n"), None, Some(1.0)),
            (None, Some(" 0.25"), None, Some(0.25)),
            (None, None, None, None),
            (Some(r#"{"reward": 0.5, "style": 1}"#), Some("1"), None, Some(0.5)),
            (Some(r#"{"reward": 0.5, "style": 1}"#), None, Some("style"), Some(1.0)),
            (Some(r#"{"a": 1, "b": 0, "ok": true, "why": "x"}"#), None, None, Some(0.5)),
            // A report beside the number.
            (Some(r#"{"tests": 12}"#), Some("1"), None, Some(1.0)),
            (Some(r#"{"tests": 12}"#), Some("broken"), None, Some(12.0)),
        ];
        for (json, text, key, expected) in table {
            assert_eq!(reward(json, text, key), Ok(expected), "{json:?} {text:?} {key:?}");
        }
        for (json, text, key) in [
            (None, Some(""), None),
            (None, Some("nan"), None),
            (Some("[1]"), Some("1"), None),
            (Some(r#"{"ok": true}"#), None, None),
            (Some(r#"{"a": 1}"#), Some("1"), Some("b")),
            (Some(r#"{"reward": NaN}"#), Some("1"), None),
            (Some(r#"{"a": 1, "b": -Infinity}"#), None, None),
        ] {
            assert!(reward(json, text, key).is_err(), "{json:?} {text:?}");
        }
    }
}
