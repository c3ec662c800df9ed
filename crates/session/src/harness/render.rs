//! An adapter made concrete for one session.

use super::AdapterError;
use super::adapter::{Argument, EnvValue, HarnessAdapter};
use minijinja::{Environment, UndefinedBehavior, Value, context};
use polar_types::{McpServer, Skill};
use std::collections::BTreeMap;
use std::path::Path;

/// Names a template may read, besides `settings.NAME`.
pub(super) const VARIABLES: [&str; 14] = [
    "base_url",
    "api_key",
    "model",
    "instruction",
    "command",
    "home",
    "workdir",
    "install",
    "bin",
    "session_id",
    "context_window",
    "max_output_tokens",
    "mcp_servers",
    "skills",
];

/// What a session fills in.
#[derive(Clone, Copy)]
pub struct RenderInput<'a> {
    /// `base_url`: root of the gateway as seen inside the sandbox, without `/v1`. The
    /// secret is not part of it, so that it may appear in logs.
    pub base_url: &'a str,
    /// `api_key`: the session's secret.
    pub api_key: &'a str,
    /// `model`: the name the task gives; the adapter's default when absent.
    pub model: Option<&'a str>,
    /// `instruction`: what the agent is asked to do.
    pub instruction: &'a str,
    /// `command`: the task's command line; empty when it gives none.
    pub command: &'a str,
    /// `home`: home folder inside the sandbox.
    pub home: &'a str,
    /// `workdir`: folder it starts in.
    pub workdir: &'a str,
    /// `install`: the installation; `bin` is its `node_modules/.bin`, or its `venv/bin`
    /// where nothing comes from npm.
    pub install: Option<&'a Path>,
    /// `session_id`.
    pub session_id: &'a str,
    /// `context_window`: tokens the engine's model can hold.
    pub context_window: u64,
    /// `max_output_tokens`: most tokens of one reply.
    pub max_output_tokens: u64,
    /// `mcp_servers`: each with `name`, `command` or `url` (the other one is none), `args`,
    /// `env` and `headers`.
    pub mcp_servers: &'a [McpServer],
    /// `skills`: their names.
    pub skills: &'a [Skill],
    /// `settings.NAME`: what the task sets; defaults are filled in.
    pub settings: &'a serde_json::Map<String, serde_json::Value>,
}

/// What to run. Holds the session's secret, so it does not print itself.
pub struct RenderedHarness {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Given on stdin.
    pub stdin: Vec<u8>,
    /// Environment of the program.
    pub env: BTreeMap<String, String>,
    /// Files to write first.
    pub files: Vec<RenderedFile>,
    /// Folders of the sandbox that hold a skill each, and where they go.
    pub skill_folders: Vec<(String, String)>,
}

/// A file to write into the sandbox.
pub struct RenderedFile {
    /// Where.
    pub path: String,
    /// What goes in.
    pub content: String,
    /// Whether it gets the executable bits.
    pub executable: bool,
}

/// Templates fail on unknown variables and keep their last newline.
pub(super) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_keep_trailing_newline(true);
    environment
}

impl HarnessAdapter {
    /// Fills the adapter's templates in.
    pub fn render(&self, input: RenderInput<'_>) -> Result<RenderedHarness, AdapterError> {
        let settings = self.resolve_settings(input.settings)?;
        let install = input.install.map(|path| path.display().to_string()).unwrap_or_default();
        let from_npm = self.install.as_ref().is_some_and(|recipe| !recipe.npm.is_empty());
        let programs = if from_npm { "node_modules/.bin" } else { "venv/bin" };
        let renderer = Renderer {
            adapter: self,
            environment: environment(),
            variables: context! {
                base_url => input.base_url,
                api_key => input.api_key,
                model => input.model.unwrap_or(&self.model),
                instruction => input.instruction,
                command => input.command,
                home => input.home,
                workdir => input.workdir,
                bin => format!("{install}/{programs}"),
                install => install,
                session_id => input.session_id,
                context_window => input.context_window,
                max_output_tokens => input.max_output_tokens,
                mcp_servers => input.mcp_servers.iter().map(server).collect::<Vec<_>>(),
                skills => input.skills.iter().map(|skill| &skill.name).collect::<Vec<_>>(),
                settings => settings,
            },
        };
        let mut files = renderer.files()?;
        let mut skill_folders = Vec::new();
        for (skill, folder) in renderer.skills(input.skills)? {
            if let Some(content) = skill.content.clone() {
                let path = format!("{folder}/SKILL.md");
                files.push(RenderedFile { path, content, executable: false });
            } else if let Some(path) = skill.path.clone() {
                skill_folders.push((path, folder));
            }
        }
        Ok(RenderedHarness {
            argv: renderer.argv()?,
            stdin: match &self.stdin {
                Some(text) => renderer.text("stdin", text)?.into_bytes(),
                None => Vec::new(),
            },
            env: renderer.env()?,
            files,
            skill_folders,
        })
    }
}

/// A server with every key, so that templates can ask for any.
fn server(server: &McpServer) -> Value {
    let McpServer { name, command, args, env, url, headers } = server;
    context! { name, command, args, env, url, headers }
}

struct Renderer<'a> {
    adapter: &'a HarnessAdapter,
    environment: Environment<'static>,
    variables: Value,
}

impl Renderer<'_> {
    fn argv(&self) -> Result<Vec<String>, AdapterError> {
        let mut argv = Vec::new();
        for argument in &self.adapter.command {
            match argument {
                Argument::Always(text) => argv.push(self.text("command", text)?),
                Argument::When { when, args } => {
                    if self.holds("command", when)? {
                        for text in args {
                            argv.push(self.text("command", text)?);
                        }
                    }
                }
            }
        }
        Ok(argv)
    }

    fn env(&self) -> Result<BTreeMap<String, String>, AdapterError> {
        let mut env = BTreeMap::new();
        for (name, value) in &self.adapter.env_vars {
            match value {
                EnvValue::Always(text) => {
                    env.insert(name.clone(), self.text("env_vars", text)?);
                }
                EnvValue::When { when, value } => {
                    if self.holds("env_vars", when)? {
                        env.insert(name.clone(), self.text("env_vars", value)?);
                    }
                }
            }
        }
        Ok(env)
    }

    fn files(&self) -> Result<Vec<RenderedFile>, AdapterError> {
        let render = |file: &super::FileTemplate| {
            Ok(RenderedFile {
                path: self.text("files", &file.path)?,
                content: self.text("files", &file.content)?,
                executable: file.executable,
            })
        };
        self.adapter.files.iter().map(render).collect()
    }

    /// Each skill's folder among those of the program.
    fn skills<'a>(&self, skills: &'a [Skill]) -> Result<Vec<(&'a Skill, String)>, AdapterError> {
        let Some(parent) = &self.adapter.skills_folder else { return Ok(Vec::new()) };
        let parent = self.text("skills_folder", parent)?;
        Ok(skills.iter().map(|skill| (skill, format!("{parent}/{}", skill.name))).collect())
    }

    fn text(&self, key: &str, template: &str) -> Result<String, AdapterError> {
        self.environment
            .render_str(template, &self.variables)
            .map_err(|error| self.refuse(key, &error))
    }

    fn holds(&self, key: &str, expression: &str) -> Result<bool, AdapterError> {
        self.environment
            .compile_expression(expression)
            .and_then(|expression| expression.eval(&self.variables))
            .map(|value| value.is_true())
            .map_err(|error| self.refuse(key, &error))
    }

    fn refuse(&self, key: &str, error: &minijinja::Error) -> AdapterError {
        AdapterError::new(
            &self.adapter.name,
            None,
            format!("a template in `{key}` cannot be filled in: {error}"),
            "correct it in the adapter".to_owned(),
        )
    }
}
