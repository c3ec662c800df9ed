//! What the user can say of a node's stages and of the images it has ready.

use anyhow::ensure;
use clap::Args;
use polar_node::{RuntimeImage, WarmImage};
use polar_types::{RuntimeKind, Slots};

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct StageArgs {
    /// Places of stages that are not to follow from --concurrency, for example
    /// `prepare=4,grade=8`: `prepare`, `ready` (prepared, waiting to run), `grade`, and `warm`
    /// (sandboxes of graders made while agents run). With `prepare=0` or `grade=0` that is done in
    /// the run slot.
    #[arg(long, value_name = "STAGE=N,…", value_delimiter = ',', value_parser = stage)]
    slots: Vec<(Stage, u32)>,

    /// Image to pull, or unpack, at the start, before a session wants it: `debian:12`, or
    /// `apptainer=/images/debian.sif`. RUNTIME is `docker` when not given. May be given several
    /// times.
    #[arg(long, value_name = "[RUNTIME=]IMAGE", value_parser = image)]
    pub(crate) prepull: Vec<RuntimeImage>,

    /// Keep N sandboxes of an image ready, as sessions have asked for them before: `debian:12=4`,
    /// `podman=debian:12=4`, or `local=4`, which has no image. They take room beside those of
    /// sessions. May be given several times.
    #[arg(long, value_name = "[RUNTIME=]IMAGE=N", value_parser = warm)]
    pub(crate) warm: Vec<WarmImage>,

    /// Room that is to stay free on the disk of the state folder, in MiB. With less the node takes
    /// no further sessions, and says so; those that it has go on. 1024 when not given, or a
    /// twentieth of a smaller disk.
    #[arg(long, value_name = "MIB")]
    pub(crate) keep_free_mb: Option<u64>,

    /// Memory that all sandboxes of tasks with a `memory_mb` together may be given, in MiB; a session begins once
    /// its own fits beside the others. More than there is lets them share what they do not use. When not given, what the
    /// machine or its cgroup has, less 2048 (or a quarter of less than 8192).
    #[arg(long, value_name = "MIB")]
    pub(crate) sandbox_memory_mb: Option<u64>,
}

/// A stage whose places can be set by themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Prepare,
    Ready,
    Grade,
    Warm,
}

impl StageArgs {
    pub(crate) fn slots(&self, concurrency: u32) -> anyhow::Result<Slots> {
        let mut slots = Slots::of_concurrency(concurrency);
        for (index, (stage, places)) in self.slots.iter().enumerate() {
            let is_said_before = self.slots[..index].iter().any(|(other, _)| other == stage);
            let name = stage.name();
            ensure!(!is_said_before, "--slots: {name} is said twice; say it once");
            match stage {
                Stage::Prepare => slots.prepare = *places,
                Stage::Ready => slots.ready = *places,
                Stage::Grade => slots.grade = *places,
                Stage::Warm => slots.warm = *places,
            }
        }
        Ok(slots)
    }
}

impl Stage {
    const ALL: [Self; 4] = [Self::Prepare, Self::Ready, Self::Grade, Self::Warm];

    fn name(self) -> &'static str {
        match self {
            Self::Prepare => "prepare",
            Self::Ready => "ready",
            Self::Grade => "grade",
            Self::Warm => "warm",
        }
    }
}

fn stage(text: &str) -> Result<(Stage, u32), String> {
    let (name, places) = text.split_once('=').ok_or("must be like prepare=4")?;
    let name = name.trim();
    match Stage::ALL.into_iter().find(|stage| stage.name() == name) {
        Some(stage) => Ok((stage, number(places)?)),
        None if name == "run" => Err("places to run in are --concurrency".to_owned()),
        None => {
            let known = Stage::ALL.map(Stage::name).join(", ");
            Err(format!("there is no stage {name:?}; there are {known}"))
        }
    }
}

fn number(text: &str) -> Result<u32, String> {
    text.trim().parse().map_err(|_| format!("{text:?} is no whole number from 0 on"))
}

fn image(text: &str) -> Result<RuntimeImage, String> {
    let (runtime, image) = match text.split_once('=') {
        None => (RuntimeKind::Docker, text),
        Some((name, rest)) => match RuntimeKind::named(name) {
            Some(kind) => (kind, rest),
            None => {
                let known = RuntimeKind::ALL.map(RuntimeKind::as_str).join(", ");
                return Err(format!("there is no runtime {name:?}; there are {known}"));
            }
        },
    };
    match (runtime, image) {
        (RuntimeKind::Local, _) => Err("local sandboxes have no image".to_owned()),
        (_, "") => Err("an image is missing".to_owned()),
        _ => Ok(RuntimeImage { runtime, image: Some(image.to_owned()) }),
    }
}

fn warm(text: &str) -> Result<WarmImage, String> {
    let (named, places) = text.rsplit_once('=').ok_or("must be like debian:12=4")?;
    let of = match RuntimeKind::named(named) {
        Some(RuntimeKind::Local) => RuntimeImage { runtime: RuntimeKind::Local, image: None },
        Some(kind) => return Err(format!("name an image of {}", kind.as_str())),
        None => image(named)?,
    };
    Ok(WarmImage { of, places: number(places)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_follow_from_concurrency_unless_said_otherwise() {
        let said = ["prepare=0", "grade=3"].map(|text| stage(text).unwrap()).to_vec();
        let args = StageArgs { slots: said, ..StageArgs::default() };
        let expected = Slots { prepare: 0, ready: 4, run: 8, grade: 3, warm: 8 };
        assert_eq!(args.slots(8).unwrap(), expected);
        let said = ["grade=1", "ready=1", "grade=2"].map(|text| stage(text).unwrap()).to_vec();
        let twice = StageArgs { slots: said, ..StageArgs::default() }.slots(8).unwrap_err();
        assert!(twice.to_string().contains("grade is said twice"), "{twice}");
        for wrong in ["run=2", "prepare", "prepare=-1", "sleep=1"] {
            assert!(stage(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn images_are_named_with_their_runtime() {
        let of = |runtime, image: &str| RuntimeImage { runtime, image: Some(image.to_owned()) };
        let uri = "docker://debian:12";
        let table = [
            ("debian:12", of(RuntimeKind::Docker, "debian:12")),
            ("podman=debian:12", of(RuntimeKind::Podman, "debian:12")),
            ("apptainer=docker://debian:12", of(RuntimeKind::Apptainer, uri)),
        ];
        for (text, expected) in table {
            assert_eq!(image(text).unwrap(), expected);
            let warmed = WarmImage { of: expected, places: 2 };
            assert_eq!(warm(&format!("{text}=2")).unwrap(), warmed);
        }
        let local = RuntimeImage { runtime: RuntimeKind::Local, image: None };
        assert_eq!(warm("local=3").unwrap(), WarmImage { of: local, places: 3 });
        for wrong in ["local=x", "docker=", "", "dokcer=debian:12"] {
            assert!(image(wrong).is_err(), "{wrong}");
        }
        for wrong in ["debian:12", "debian:12=x", "docker=4", "=4"] {
            assert!(warm(wrong).is_err(), "{wrong}");
        }
    }
}
