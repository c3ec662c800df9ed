//! The evaluator that is a user's function in Python.

use super::{Place, Verdict, answer};
use crate::attempt::Attempt;
use crate::failure::Stop;
use polar_sandbox::ExecEnd;
use polar_types::PythonEvaluator;

/// Calls the function. What it gives goes into a file, since what is imported may print.
const CALL: &str = r#"import importlib.util
import json
import os
import sys

folder, name = sys.argv[1:]
result = os.path.join(folder, "result.json")
spec = importlib.util.spec_from_file_location("polar_grader", os.path.join(folder, "grader.py"))
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
with open(os.path.join(folder, "context.json"), encoding="utf-8") as file:
    context = json.load(file)
told = getattr(module, name)(context)
if not isinstance(told, dict):
    told = {"reward": float(told)}
with open(result, "w", encoding="utf-8") as file:
    json.dump(told, file)
"#;
const RUN: &str =
    r#"exec $POLAR_PYTHON -I "$POLAR_FOLDER/call.py" "$POLAR_FOLDER" "$POLAR_FUNCTION""#;
const MOST_RESULT: u64 = 4 << 20;

impl Attempt {
    pub(super) async fn evaluate_by_python(
        &self,
        place: &Place<'_>,
        python: &PythonEvaluator,
    ) -> Result<Verdict, Stop> {
        let folder = format!("{}/.polar-grader-{}", place.sandbox.home(), place.next_command());
        // Nothing that is there already is a result.
        let removal = ["rm", "-rf", "--", &folder].map(str::to_owned).to_vec();
        if let (ExecEnd::TimedOut, _) = self.read_graded(place, None, removal, MOST_RESULT).await? {
            return Ok(Verdict::failed("there was no time left to run the function"));
        }
        let context = self.context(place.sandbox.workdir(), &place.calls);
        for (name, content) in [
            ("call.py", CALL.to_owned()),
            ("grader.py", python.code.clone()),
            ("context.json", context.to_string()),
        ] {
            let path = format!("{folder}/{name}");
            let write = place.sandbox.write_file(&path, content.as_bytes(), false);
            self.unless_stopped(write)
                .await?
                .map_err(|error| crate::maker::sandbox_failure(error.to_string()))?;
        }
        let mut env = python.env.clone();
        env.insert("POLAR_PYTHON".to_owned(), python.python.clone());
        env.insert("POLAR_FOLDER".to_owned(), folder.clone());
        env.insert("POLAR_FUNCTION".to_owned(), python.function.clone());
        let limit = self.runner.config.output_limit;
        let run = self.run_graded(place, RUN, None, &env, limit).await?;
        match run.exit_code(place.seconds) {
            Ok(0) => {}
            Ok(code) => {
                return Ok(Verdict::failed(format!(
                    "the function `{}` ended with exit code {code}, so there is no reward; see \
                     grader.log, and have it give a number for failed work too",
                    python.function
                )));
            }
            Err(why) => return Ok(Verdict::failed(why)),
        }
        let read = ["cat", "--", &format!("{folder}/result.json")].map(str::to_owned).to_vec();
        let result = match self.read_graded(place, None, read, MOST_RESULT).await? {
            (ExecEnd::Exited(0), Ok(bytes)) => answer::read(&bytes),
            _ => Err("what it gave cannot be read".to_owned()),
        };
        let verdict = result.and_then(|result| place.calls.verdict(&result));
        Ok(verdict.unwrap_or_else(|problem| {
            Verdict::failed(format!("the function `{}` gave no reward: {problem}", python.function))
        }))
    }
}
