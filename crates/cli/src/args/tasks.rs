//! What the user can type after `polar tasks`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub(crate) enum Tasks {
    /// Make Polar tasks of tasks in another form.
    #[command(subcommand)]
    Import(Import),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Import {
    /// Folders of Harbor (Terminal-Bench) tasks, each with a `task.toml`.
    Harbor(ImportHarbor),
    /// Instances of SWE-bench or SWE-Gym, as JSON or JSON lines.
    Swebench(ImportSwebench),
    /// Lines of JSON, each an object with at least an instruction.
    Jsonl(ImportJsonl),
}

/// What all imports take.
#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// Where the tasks go: a file that ends with `.jsonl`, or a folder for a YAML file each. To
    /// stdout, as JSON lines, when not given.
    #[arg(long, value_name = "FILE|DIR")]
    pub(crate) out: Option<PathBuf>,

    /// Task file with what the tasks have in common: harness, runtime, sampling, budgets. What is
    /// imported goes over it, except a `runtime` of its own.
    #[arg(long, value_name = "TASK")]
    pub(crate) template: Option<PathBuf>,

    /// Harness of the tasks, instead of the template's.
    #[arg(long, value_name = "NAME")]
    pub(crate) harness: Option<String>,

    /// Image of the tasks, instead of what they say; `{name}` in it stands for the task's name.
    #[arg(long, value_name = "IMAGE")]
    pub(crate) image: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ImportHarbor {
    /// Task folders, or folders that hold some.
    #[arg(value_name = "FOLDER", required = true)]
    pub(crate) folders: Vec<PathBuf>,

    /// Build the images of folders that name none, with the Docker of this machine.
    #[arg(long)]
    pub(crate) build: bool,

    /// Run each folder's own solution in the place of an agent, to check the tasks.
    #[arg(long)]
    pub(crate) oracle: bool,

    #[command(flatten)]
    pub(crate) common: ImportArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ImportSwebench {
    /// File with the instances.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Import this instance only; may be given again.
    #[arg(long = "only", value_name = "ID")]
    pub(crate) only: Vec<String>,

    /// Command that runs the tests, before the names of their files; by the instance or its
    /// repository when not given.
    #[arg(long, value_name = "COMMAND")]
    pub(crate) test_command: Option<String>,

    /// Apply each instance's own patch in the place of an agent, to check the tasks.
    #[arg(long)]
    pub(crate) oracle: bool,

    #[command(flatten)]
    pub(crate) common: ImportArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ImportJsonl {
    /// File with a JSON object in each line.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Field of the lines that is the instruction.
    #[arg(long, default_value = "instruction", value_name = "FIELD")]
    pub(crate) instruction: String,

    /// Field of the lines that names the task; numbered by line when it is not there.
    #[arg(long, default_value = "task_id", value_name = "FIELD")]
    pub(crate) id: String,

    #[command(flatten)]
    pub(crate) common: ImportArgs,
}
