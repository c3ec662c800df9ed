//! Whether the evaluator's command can be found, and what else it needs, asked before the agent
//! has touched anything.
//!
//! A shell ends with 126 or 127 when it cannot run a command. Before the agent runs, that
//! means a task that can grade nothing, and the attempt ends there. Afterwards it is what
//! became of the sandbox in the agent's hands, and no way out of a reward of 0.

use crate::attempt::Attempt;
use crate::failure::Stop;
use crate::hints;
use crate::report::clip_end;
use polar_sandbox::{Exec, ExecEnd, Sandbox};
use polar_types::{
    ErrorClass, EvaluatorSpec, PythonEvaluator, Side, SwebenchEvaluator, TestsEvaluator,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Tells by its exit code what the program in `$1` is.
const LOOK: &str = r#"case $1 in
*/*) [ -e "$1" ] || exit 11; [ -f "$1" ] && [ -x "$1" ] || exit 12 ;;
*) command -v "$1" >/dev/null || exit 11 ;;
esac
[ -z "$2" ] || "$1" -c 'import importlib.util, sys
sys.exit(0 if importlib.util.find_spec(sys.argv[1]) else 13)' "$2""#;
/// Modules that run tests and are installed: what else `python -m` runs may be the agent's to write.
const RUNNERS: [&str; 6] = ["pytest", "nose2", "coverage", "tox", "nox", "behave"];
/// Reads a function's code as Python does before it runs any of it; the code that there is an
/// error with ends it with another exit code and is told.
const READ: &str = r#"command -v "$1" >/dev/null || exit 11
exec "$1" -I -c '
import sys
try:
    compile(sys.stdin.buffer.read(), "evaluator.code", "exec")
except (SyntaxError, ValueError) as error:
    print(error)
    sys.exit(14)
'"#;
/// Makes the folder `$1`.
const MAKE: &str = r#"mkdir -p -- "$1" && [ -w "$1" ]"#;
/// Looks for the commit `$1` of the repository that it runs in.
const HAS_COMMIT: &str = r#"command -v git >/dev/null || exit 11
git -c safe.directory='*' cat-file -e "$1^{commit}""#;
const UNREADABLE: i32 = 14;
/// Most characters of an error that are told.
const MOST_ERROR: usize = 300;
const ABSENT: i32 = 11;
const NOT_EXECUTABLE: i32 = 12;
const NO_MODULE: i32 = 13;

/// What is known of the evaluator's program from before the agent ran.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Found {
    /// Nothing: the command does not begin with the plain name of a program.
    #[default]
    Unknown,
    /// It was there.
    There(String),
    /// It was not there, which may be the agent's task to change.
    Absent(String),
}

/// What was found of each program that an evaluator's commands begin with, and which of the places
/// that it needs were there.
#[derive(Debug, Clone, Default)]
pub(crate) struct Programs {
    found: BTreeMap<String, Found>,
    places: BTreeSet<String>,
}

impl Programs {
    /// What was found for a command.
    pub(crate) fn of(&self, command: &str) -> &Found {
        self.found.get(command).unwrap_or(&Found::Unknown)
    }

    /// Whether a place that an evaluator needs was there before the agent ran: that it is not any
    /// more is what the agent made of its sandbox then.
    pub(crate) fn had(&self, place: &str) -> bool {
        self.places.contains(place)
    }
}

/// The place of a SWE-bench instance's tests before they are changed.
pub(crate) fn base_of(instance: &SwebenchEvaluator) -> String {
    let commit = instance.base_commit.as_deref().unwrap_or("HEAD");
    format!("{commit} in {}", instance.workdir.as_deref().unwrap_or("the work folder"))
}

/// A command of an evaluator.
struct Look<'a> {
    /// Its field in the task.
    field: String,
    command: &'a str,
    workdir: Option<&'a str>,
    env: &'a BTreeMap<String, String>,
}

impl Attempt {
    /// Looks for the evaluator's programs. A task whose evaluator cannot run, whatever the
    /// agent does, is refused. What steps of `grading.setup` bring is not there yet, so that
    /// nothing is said of tasks that have such steps.
    pub(crate) async fn find_evaluator(
        &self,
        sandbox: &dyn Sandbox,
        timeout: Duration,
    ) -> Result<Programs, Stop> {
        let mut programs = Programs::default();
        let task = &self.lease.task;
        let mut functions = Vec::new();
        functions_of(&task.evaluator, "evaluator".to_owned(), &mut functions);
        for (at, function) in functions {
            self.read_function(sandbox, &at, function, timeout).await?;
        }
        let mut needs = Vec::new();
        places(&task.evaluator, "evaluator".to_owned(), &mut needs);
        for need in needs {
            if self.has_place(sandbox, &need, timeout).await? {
                programs.places.insert(need.place);
            }
        }
        if !task.grading.setup.is_empty() {
            return Ok(programs);
        }
        let mut looks = Vec::new();
        commands(&task.evaluator, "evaluator".to_owned(), &mut looks);
        for look in looks {
            let found = self.find_program(sandbox, &look, timeout).await?;
            programs.found.insert(look.command.to_owned(), found);
        }
        Ok(programs)
    }

    /// Whether a place is there that an evaluator needs. Where it is not and nothing can bring it
    /// later, the task is refused.
    async fn has_place(
        &self,
        sandbox: &dyn Sandbox,
        need: &Need<'_>,
        timeout: Duration,
    ) -> Result<bool, Stop> {
        let stderr = self.folder.log("evaluator.err");
        let exec = Exec {
            argv: ["sh", "-c", need.look, "sh", need.of].map(str::to_owned).to_vec(),
            workdir: need.workdir.map(str::to_owned),
            env: BTreeMap::new(),
            stdin: None,
            timeout,
            stdout: self.folder.log("evaluator.out"),
            stderr: stderr.clone(),
            output_limit: self.runner.config.output_limit,
        };
        match self.exec_in(sandbox, "looking for what the evaluator needs", exec).await? {
            ExecEnd::Exited(0) => Ok(true),
            ExecEnd::Exited(code) if self.lease.task.grading.setup.is_empty() => {
                let why = match code {
                    ABSENT => "there is no `git`".to_owned(),
                    _ => clip_end(&std::fs::read_to_string(stderr).unwrap_or_default(), MOST_ERROR),
                };
                let message = format!("{}: {} ({why})", need.field, need.lacks);
                Err(Stop::failed(Side::Grader, ErrorClass::Invalid, message))
            }
            ExecEnd::Exited(_) | ExecEnd::TimedOut => Ok(false),
        }
    }

    /// Refuses a function whose code is none, before an agent has worked for a grade that cannot be.
    async fn read_function(
        &self,
        sandbox: &dyn Sandbox,
        at: &str,
        function: &PythonEvaluator,
        timeout: Duration,
    ) -> Result<(), Stop> {
        let stdout = self.folder.log("evaluator.out");
        let exec = Exec {
            argv: ["sh", "-c", READ, "sh", &function.python].map(str::to_owned).to_vec(),
            workdir: None,
            env: function.env.clone(),
            stdin: Some(function.code.clone().into_bytes()),
            timeout,
            stdout: stdout.clone(),
            stderr: self.folder.log("evaluator.err"),
            output_limit: self.runner.config.output_limit,
        };
        match self.exec_in(sandbox, "reading the evaluator's code", exec).await? {
            ExecEnd::Exited(UNREADABLE) => {
                let said = std::fs::read_to_string(stdout).unwrap_or_default();
                let said: String = said.trim().chars().take(MOST_ERROR).collect();
                let message =
                    format!("{at}.code is no Python that `{}` can read: {said}", function.python);
                Err(Stop::failed(Side::Grader, ErrorClass::Invalid, message))
            }
            // One that is not there may come with steps of `grading.setup`.
            ExecEnd::Exited(ABSENT) if self.lease.task.grading.setup.is_empty() => {
                let hint = hints::missing_program(&self.lease.task.runtime);
                let problem =
                    format!("`{}` is not there before the agent runs{hint}", function.python);
                Err(refused(&format!("{at}.python"), &problem))
            }
            ExecEnd::Exited(_) | ExecEnd::TimedOut => Ok(()),
        }
    }

    async fn find_program(
        &self,
        sandbox: &dyn Sandbox,
        look: &Look<'_>,
        timeout: Duration,
    ) -> Result<Found, Stop> {
        let Some(start) = Start::of(look.command) else { return Ok(Found::Unknown) };
        let program = start.program;
        let exec = Exec {
            argv: ["sh", "-c", LOOK, "sh", program, start.runner().unwrap_or_default()]
                .map(str::to_owned)
                .to_vec(),
            workdir: look.workdir.map(str::to_owned),
            env: look.env.clone(),
            stdin: None,
            timeout,
            stdout: self.folder.log("evaluator.out"),
            stderr: self.folder.log("evaluator.err"),
            output_limit: self.runner.config.output_limit,
        };
        let end = self.exec_in(sandbox, "looking for the evaluator", exec).await?;
        let runtime = &self.lease.task.runtime;
        match end {
            ExecEnd::Exited(0) => Ok(Found::There(program.to_owned())),
            ExecEnd::Exited(NO_MODULE) if start.alone => Err(refused(
                &look.field,
                &format!(
                    "`{program}` has no module `{}` before the agent runs; install it by \
                     `runtime.prepare` or in the image, or, if the agent is to install it, write \
                     `env {program} …`",
                    start.runner().unwrap_or_default()
                ),
            )),
            ExecEnd::Exited(NOT_EXECUTABLE) if start.alone => Err(refused(
                &look.field,
                &format!(
                    "`{program}` is there but not an executable file; set `executable: true` \
                     where it is written"
                ),
            )),
            // A path may be the agent's to make; a program that is installed, hardly.
            ExecEnd::Exited(ABSENT) if start.alone && !program.contains('/') => Err(refused(
                &look.field,
                &format!(
                    "`{program}` is not there before the agent runs{}; if the agent is to \
                     install it, write `env {program} …`",
                    hints::missing_program(runtime)
                ),
            )),
            ExecEnd::Exited(ABSENT | NOT_EXECUTABLE) => Ok(Found::Absent(program.to_owned())),
            ExecEnd::Exited(_) | ExecEnd::TimedOut => Ok(Found::Unknown),
        }
    }
}

/// A place that an evaluator needs.
struct Need<'a> {
    /// Its field in the task.
    field: String,
    /// Looks for `of`.
    look: &'static str,
    of: &'a str,
    workdir: Option<&'a str>,
    place: String,
    /// What is to be said where it is not there.
    lacks: &'static str,
}

/// All places that an evaluator and its parts need.
fn places<'a>(evaluator: &'a EvaluatorSpec, at: String, found: &mut Vec<Need<'a>>) {
    match evaluator {
        EvaluatorSpec::Harbor(harbor) => found.push(Need {
            field: format!("{at}.logs"),
            look: MAKE,
            of: &harbor.logs,
            workdir: None,
            place: harbor.logs.clone(),
            lacks: "the folder cannot be made in this sandbox",
        }),
        EvaluatorSpec::Swebench(instance) => found.push(Need {
            field: format!("{at}.base_commit"),
            look: HAS_COMMIT,
            of: instance.base_commit.as_deref().unwrap_or("HEAD"),
            workdir: instance.workdir.as_deref(),
            place: base_of(instance),
            lacks: "the work folder is no git repository that has the base commit",
        }),
        _ => {
            let is_weighted = matches!(evaluator, EvaluatorSpec::WeightedSum { .. });
            for (index, part) in evaluator.parts().into_iter().enumerate() {
                let within = if is_weighted { ".evaluator" } else { "" };
                places(part, format!("{at}.of[{index}]{within}"), found);
            }
        }
    }
}

/// All functions of an evaluator and its parts, with their fields.
fn functions_of<'a>(
    evaluator: &'a EvaluatorSpec,
    at: String,
    found: &mut Vec<(String, &'a PythonEvaluator)>,
) {
    if let EvaluatorSpec::Python(function) = evaluator {
        found.push((at, function));
        return;
    }
    let is_weighted = matches!(evaluator, EvaluatorSpec::WeightedSum { .. });
    for (index, part) in evaluator.parts().into_iter().enumerate() {
        let within = if is_weighted { ".evaluator" } else { "" };
        functions_of(part, format!("{at}.of[{index}]{within}"), found);
    }
}

/// All commands of an evaluator and its parts, with their fields.
fn commands<'a>(evaluator: &'a EvaluatorSpec, at: String, found: &mut Vec<Look<'a>>) {
    let field = format!("{at}.command");
    match evaluator {
        EvaluatorSpec::Command { command, workdir, env, .. } => {
            found.push(Look { field, command, workdir: workdir.as_deref(), env });
        }
        EvaluatorSpec::Tests(TestsEvaluator { command, workdir, env, .. }) => {
            found.push(Look { field, command, workdir: workdir.as_deref(), env });
        }
        EvaluatorSpec::WeightedSum { of } => {
            for (index, part) in of.iter().enumerate() {
                commands(&part.evaluator, format!("{at}.of[{index}].evaluator"), found);
            }
        }
        EvaluatorSpec::All { of } | EvaluatorSpec::First { of } => {
            for (index, part) in of.iter().enumerate() {
                commands(part, format!("{at}.of[{index}]"), found);
            }
        }
        EvaluatorSpec::None {}
        | EvaluatorSpec::Harbor(_)
        | EvaluatorSpec::Swebench(_)
        | EvaluatorSpec::Judge(_)
        | EvaluatorSpec::Http(_)
        | EvaluatorSpec::Python(_) => {}
    }
}

fn refused(field: &str, problem: &str) -> Stop {
    let message = format!("{field} cannot be run: {problem}");
    Stop::failed(Side::Grader, ErrorClass::Invalid, message)
}

/// How a shell command starts.
#[derive(Debug, PartialEq, Eq)]
struct Start<'a> {
    /// The program that is run first.
    program: &'a str,
    /// What follows it.
    arguments: &'a str,
    /// Whether nothing in the command runs when the program cannot be run.
    alone: bool,
}

impl<'a> Start<'a> {
    /// None when it takes a shell to tell.
    fn of(command: &'a str) -> Option<Self> {
        let mut rest = command.trim();
        loop {
            let ends = |letter: char| letter.is_whitespace() || "|&;<>()".contains(letter);
            let (word, after) = rest.split_at(rest.find(ends).unwrap_or(rest.len()));
            if let Some((name, value)) = word.split_once('=') {
                let plain = is_plain(name) && (value.is_empty() || is_plain(value));
                if !plain || name == "PATH" {
                    return None;
                }
                rest = after.trim_start();
                continue;
            }
            // `name ()` makes a function.
            if !is_plain(word) || after.trim_start().starts_with('(') {
                return None;
            }
            let others = after.replace("&&", " ").replace(">&", " ");
            let alone = !others.contains(['|', ';', '&', '\n']);
            return Some(Self { program: word, arguments: after, alone });
        }
    }

    /// The installed module that runs the tests, where the program is Python and told so.
    fn runner(&self) -> Option<&'a str> {
        let name = self.program.rsplit('/').next().unwrap_or_default();
        let mut words = self.arguments.split_whitespace().skip_while(|word| {
            // Options that take no value.
            matches!(*word, "-B" | "-E" | "-I" | "-P" | "-S" | "-s" | "-u")
        });
        let module =
            (name.starts_with("python") && words.next() == Some("-m")).then(|| words.next());
        module.flatten().filter(|module| RUNNERS.contains(module))
    }
}

/// Whether a shell takes a word as it is.
fn is_plain(word: &str) -> bool {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "_./+-".contains(letter);
    !word.is_empty() && !word.starts_with('-') && word.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::Start;

    #[test]
    fn the_first_program_is_told_where_no_shell_is_needed() {
        let alone = |program| Some((program, true));
        let among_others = |program| Some((program, false));
        let table = [
            ("pytest -q", alone("pytest")),
            ("  ./run_tests.sh\n", alone("./run_tests.sh")),
            ("A=1 B= python3.11 -m unittest 2>&1 && true", alone("python3.11")),
            ("pytest || python3 -m unittest", among_others("pytest")),
            ("pytest; true", among_others("pytest")),
            ("pytest & wait", among_others("pytest")),
            ("pytest\necho 1", among_others("pytest")),
            ("check() { true; }; check", None),
            ("check () { true; }; check", None),
            ("PATH=/opt/bin:$PATH pytest", None),
            ("PATH=/opt/bin pytest", None),
            ("A='1 2' pytest", None),
            ("$RUN tests", None),
            ("\"./my tests\"", None),
            ("(cd tests && ./run)", None),
            ("A=1", None),
            ("", None),
        ];
        for (command, start) in table {
            let found = Start::of(command).map(|start| (start.program, start.alone));
            assert_eq!(found, start, "{command}");
        }
    }

    #[test]
    fn a_module_that_runs_tests_is_looked_for() {
        let runner = |command| Start::of(command).and_then(|start| start.runner());
        assert_eq!(runner("python3 -m pytest -rA tests"), Some("pytest"));
        assert_eq!(runner("A=1 /usr/bin/python3.11 -B -I -m coverage run x.py"), Some("coverage"));
        // What the agent may be to write, other programs, and what Python is told otherwise.
        for command in ["python3 -m app", "env python3 -m pytest", "python3 -c 'x' -m pytest"] {
            assert_eq!(runner(command), None, "{command}");
        }
    }
}
