//! A model's files, as far as prompts are made of them: a local folder as Hugging Face lays it out.
//!
//! Nothing is fetched, and no weights are read.

use polar_tokens::template::TemplateFiles;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// What a model's folder says about its tokens and its prompts.
#[derive(Debug, Clone)]
pub struct ModelFiles {
    /// Where it is.
    pub folder: PathBuf,
    /// Contents of `tokenizer.json`.
    pub tokenizer_json: Vec<u8>,
    /// Its chat templates.
    pub templates: TemplateFiles,
    /// Tokens that end a turn of the model.
    pub stop_token_ids: Vec<u32>,
    /// Ids are in `0..vocab_size`, where its configuration is there and says so.
    pub vocab_size: Option<u32>,
}

/// Why a folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ModelFilesError {
    /// There is no such folder.
    #[error("{} is not a folder; give the one with the model's tokenizer.json", .0.display())]
    NoFolder(PathBuf),
    /// The tokenizer is missing.
    #[error("{} has no tokenizer.json; {advice}", folder.display())]
    NoTokenizer {
        /// The folder.
        folder: PathBuf,
        /// How to get one.
        advice: &'static str,
    },
    /// The chat template is missing.
    #[error(
        "{} has no chat template: neither chat_template.jinja nor `chat_template` in \
         tokenizer_config.json; put the model's own there as chat_template.jinja",
        .0.display()
    )]
    NoTemplate(PathBuf),
    /// Nothing says where a turn of the model ends.
    #[error(
        "{} does not say which token ends a turn of the model: put `eos_token_id` into its \
         generation_config.json",
        .0.display()
    )]
    NoStopToken(PathBuf),
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file is not JSON.
    #[error("{} is not valid JSON: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
}

const FROM_SENTENCEPIECE: &str = "save one from its tokenizer.model with transformers: \
     AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)";
const FROM_ELSEWHERE: &str = "copy it from where the model was published";

/// Special tokens that templates may name.
const SPECIALS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

impl ModelFiles {
    /// Reads a model's folder.
    pub fn read(folder: impl AsRef<Path>) -> Result<Self, ModelFilesError> {
        let folder = Folder(folder.as_ref());
        if !folder.0.is_dir() {
            return Err(ModelFilesError::NoFolder(folder.0.to_owned()));
        }
        let Some(tokenizer_json) = folder.bytes("tokenizer.json")? else {
            let advice = match folder.0.join("tokenizer.model").exists() {
                true => FROM_SENTENCEPIECE,
                false => FROM_ELSEWHERE,
            };
            return Err(ModelFilesError::NoTokenizer { folder: folder.0.to_owned(), advice });
        };
        let tokenizer_config = folder.json("tokenizer_config.json")?;
        let config = folder.json("config.json")?;
        let mut specials = specials(&folder.json("special_tokens_map.json")?);
        specials.extend(self::specials(&tokenizer_config));
        let templates = folder.templates(&tokenizer_config)?;
        if templates.is_empty() {
            return Err(ModelFilesError::NoTemplate(folder.0.to_owned()));
        }
        let stop_token_ids = folder.stop_token_ids(&config, &specials, &tokenizer_json)?;
        Ok(Self {
            folder: folder.0.to_owned(),
            tokenizer_json,
            templates: TemplateFiles { templates: templates.into_iter().collect(), specials },
            stop_token_ids,
            vocab_size: vocab_size(&config),
        })
    }
}

fn vocab_size(config: &Value) -> Option<u32> {
    let said = config["vocab_size"].as_u64().or(config["text_config"]["vocab_size"].as_u64());
    u32::try_from(said?).ok()
}

struct Folder<'a>(&'a Path);

impl Folder<'_> {
    /// A file's contents, if there is one.
    fn bytes(&self, name: &str) -> Result<Option<Vec<u8>>, ModelFilesError> {
        let path = self.0.join(name);
        match fs::read(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(ModelFilesError::Io { path, source }),
        }
    }

    fn text(&self, name: &str) -> Result<Option<String>, ModelFilesError> {
        let bytes = self.bytes(name)?;
        Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// A JSON file; null when there is none.
    fn json(&self, name: &str) -> Result<Value, ModelFilesError> {
        let Some(bytes) = self.bytes(name)? else { return Ok(Value::Null) };
        serde_json::from_slice(&bytes)
            .map_err(|source| ModelFilesError::Json { path: self.0.join(name), source })
    }

    /// Templates by name. Where there are files of their own, transformers reads nothing else.
    fn templates(
        &self,
        tokenizer_config: &Value,
    ) -> Result<BTreeMap<String, String>, ModelFilesError> {
        let files = self.template_files()?;
        if !files.is_empty() {
            return Ok(files);
        }
        let of_processor = self.json("chat_template.json")?;
        let settings = [&tokenizer_config["chat_template"], &of_processor["chat_template"]];
        Ok(settings.into_iter().flat_map(named).collect())
    }

    fn template_files(&self) -> Result<BTreeMap<String, String>, ModelFilesError> {
        let mut templates = BTreeMap::new();
        if let Some(source) = self.text("chat_template.jinja")? {
            templates.insert("default".to_owned(), source);
        }
        let more = self.0.join("additional_chat_templates");
        let entries = match fs::read_dir(&more) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(templates),
            Err(source) => return Err(ModelFilesError::Io { path: more, source }),
        };
        for entry in entries.flatten() {
            let path = entry.path();
            let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
            if let Some(name) = name.filter(|_| path.extension().is_some_and(|end| end == "jinja"))
            {
                let source = fs::read_to_string(&path)
                    .map_err(|source| ModelFilesError::Io { path, source })?;
                templates.insert(name, source);
            }
        }
        Ok(templates)
    }

    /// What ends a turn, by the first file that says so.
    fn stop_token_ids(
        &self,
        config: &Value,
        specials: &Map<String, Value>,
        tokenizer_json: &[u8],
    ) -> Result<Vec<u32>, ModelFilesError> {
        let generation = self.json("generation_config.json")?;
        let places = [&generation, config, &config["text_config"]];
        let mut ids = places
            .iter()
            .map(|place| numbers(&place["eos_token_id"]))
            .find(|ids| !ids.is_empty())
            .unwrap_or_default();
        // Often the end of a turn is only here, and the end of a text there.
        let end = specials.get("eos_token").and_then(Value::as_str);
        ids.extend(end.and_then(|end| added_token(tokenizer_json, end)));
        ids.sort_unstable();
        ids.dedup();
        match ids.is_empty() {
            true => Err(ModelFilesError::NoStopToken(self.0.to_owned())),
            false => Ok(ids),
        }
    }
}

/// One template, or several with names.
fn named(written: &Value) -> Vec<(String, String)> {
    match written {
        Value::String(source) => vec![("default".to_owned(), source.clone())],
        Value::Array(named) => {
            let text = |template: &Value, key: &str| template[key].as_str().map(str::to_owned);
            let both = |template| Some((text(template, "name")?, text(template, "template")?));
            named.iter().filter_map(both).collect()
        }
        _ => Vec::new(),
    }
}

/// Texts of special tokens, which are written as such or as objects.
fn specials(written: &Value) -> Map<String, Value> {
    let text = |name: &&str| {
        let token = &written[*name];
        let text = token.as_str().or_else(|| token["content"].as_str())?;
        Some(((*name).to_owned(), Value::from(text)))
    };
    SPECIALS.iter().filter_map(text).collect()
}

fn numbers(written: &Value) -> Vec<u32> {
    let all = match written {
        Value::Array(all) => all.as_slice(),
        one => std::slice::from_ref(one),
    };
    all.iter().filter_map(|id| u32::try_from(id.as_u64()?).ok()).collect()
}

fn added_token(tokenizer_json: &[u8], text: &str) -> Option<u32> {
    let file: Value = serde_json::from_slice(tokenizer_json).ok()?;
    let added = file["added_tokens"].as_array()?;
    let token = added.iter().find(|token| token["content"] == text)?;
    u32::try_from(token["id"].as_u64()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        folder
    }

    const TOKENIZER: (&str, &str) =
        ("tokenizer.json", r#"{"added_tokens": [{"id": 7, "content": "<|end|>"}]}"#);

    #[test]
    fn every_layout_is_read() {
        let config = json!({
            "chat_template": [
                {"name": "default", "template": "old"},
                {"name": "tool_use", "template": "tools"},
            ],
            "eos_token": {"content": "<|end|>", "special": true},
            "bos_token": "<|begin|>",
            "pad_token": null,
        });
        let folder = folder(&[
            TOKENIZER,
            ("tokenizer_config.json", &config.to_string()),
            ("chat_template.jinja", "new"),
            ("additional_chat_templates/rag.jinja", "rag"),
            ("special_tokens_map.json", r#"{"unk_token": {"content": "<unk>"}}"#),
            ("generation_config.json", r#"{"eos_token_id": [5, 7]}"#),
            ("config.json", r#"{"text_config": {"eos_token_id": 9, "vocab_size": 64}}"#),
        ]);
        let files = ModelFiles::read(folder.path()).unwrap();
        let templates: Vec<_> =
            files.templates.templates.iter().map(|(n, s)| (n.as_str(), s.as_str())).collect();
        assert_eq!(templates, [("default", "new"), ("rag", "rag")]);
        let specials =
            json!({"unk_token": "<unk>", "bos_token": "<|begin|>", "eos_token": "<|end|>"});
        assert_eq!(Value::Object(files.templates.specials), specials);
        assert_eq!(files.stop_token_ids, [5, 7]);
        assert_eq!(files.vocab_size, Some(64));
    }

    #[test]
    fn settings_may_hold_several_templates() {
        let config = r#"{"chat_template": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]}"#;
        let end = ("config.json", r#"{"eos_token_id": 1}"#);
        let settings = folder(&[TOKENIZER, end, ("tokenizer_config.json", config)]);
        let templates = ModelFiles::read(settings.path()).unwrap().templates.templates;
        let expected = [("default", "a"), ("tool_use", "b")];
        assert_eq!(templates, expected.map(|(name, source)| (name.to_owned(), source.to_owned())));
    }

    #[test]
    fn what_is_missing_is_named_with_the_mend() {
        let refused = |files: &[(&str, &str)]| {
            ModelFiles::read(folder(files).path()).unwrap_err().to_string()
        };
        let template = ("chat_template.jinja", "x");
        assert!(refused(&[]).contains("no tokenizer.json; copy it"));
        assert!(refused(&[("tokenizer.model", "")]).contains("save_pretrained"));
        assert!(refused(&[TOKENIZER]).contains("chat_template.jinja"));
        assert!(refused(&[TOKENIZER, template]).contains("generation_config.json"));
        assert!(
            refused(&[TOKENIZER, template, ("config.json", "{")]).contains("config.json is not")
        );
        let nowhere = ModelFiles::read("/nowhere/at/all").unwrap_err().to_string();
        assert!(nowhere.contains("/nowhere/at/all is not a folder"), "{nowhere}");
    }

    #[test]
    fn the_end_of_a_turn_may_be_told_by_the_tokenizer_alone() {
        let folder = folder(&[
            TOKENIZER,
            ("tokenizer_config.json", r#"{"chat_template": "x", "eos_token": "<|end|>"}"#),
            ("generation_config.json", r#"{"eos_token_id": 5}"#),
        ]);
        assert_eq!(ModelFiles::read(folder.path()).unwrap().stop_token_ids, [5, 7]);
    }
}
