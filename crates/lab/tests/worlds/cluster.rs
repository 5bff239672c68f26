//! The Kubernetes manifests of `examples/cluster` against the published schema of a Job.
//!
//! `vectors/kubernetes-job.json` has the types used by the manifests: fields with their types, and
//! required fields. A manifest that uses another type needs its definition there.

use saphyr::{LoadableYamlNode, Scalar, Yaml};
use serde_json::{Map, Value, json};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/cluster")
}

fn manifest(name: &str) -> Value {
    let text = std::fs::read_to_string(folder().join(name)).unwrap();
    let documents = Yaml::load_from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
    let [document] = &documents[..] else { panic!("{name} has {} documents", documents.len()) };
    to_json(document)
}

fn to_json(yaml: &Yaml<'_>) -> Value {
    match yaml {
        Yaml::Value(Scalar::String(text)) => json!(text),
        Yaml::Value(Scalar::Integer(number)) => json!(number),
        Yaml::Value(Scalar::Boolean(is)) => json!(is),
        Yaml::Sequence(items) => items.iter().map(to_json).collect(),
        Yaml::Mapping(pairs) => {
            let field = |(key, value): (&Yaml<'_>, &Yaml<'_>)| {
                (key.as_str().expect("a key is a word").to_owned(), to_json(value))
            };
            Value::Object(pairs.iter().map(field).collect::<Map<_, _>>())
        }
        other => panic!("found {other:?}"),
    }
}

/// The errors in a value of this type, each with its place.
fn problems(schema: &Value, kind: &str, place: &str, value: &Value) -> Vec<String> {
    let of_all = |kind: &str, items: &mut dyn Iterator<Item = (String, &Value)>| {
        items
            .flat_map(|(key, item)| problems(schema, kind, &format!("{place}.{key}"), item))
            .collect()
    };
    let inner = |before: &str, after: &str| kind.strip_prefix(before)?.strip_suffix(after);
    if let Some(kind) = inner("list[", "]") {
        let Some(items) = value.as_array() else { return vec![format!("{place}: no list")] };
        return of_all(kind, &mut items.iter().enumerate().map(|(i, item)| (i.to_string(), item)));
    }
    let object = value.as_object();
    if let Some(kind) = inner("dict(str, ", ")") {
        let Some(items) = object else { return vec![format!("{place}: no mapping")] };
        return of_all(kind, &mut items.iter().map(|(key, item)| (key.clone(), item)));
    }
    let is_right = match kind {
        "str" => value.is_string(),
        "int" => value.is_i64(),
        "bool" => value.is_boolean(),
        _ => object.is_some(),
    };
    if !is_right {
        return vec![format!("{place}: found {value}, allowed: {kind}")];
    }
    let Some(fields) = object else { return Vec::new() };
    let Some(definition) = schema["definitions"].get(kind) else {
        return vec![format!("{place}: {kind} is not among the definitions")];
    };
    let required = definition["required"].as_array().into_iter().flatten();
    let required = required.filter_map(Value::as_str).filter(|key| !fields.contains_key(*key));
    let mut found: Vec<_> = required.map(|key| format!("{place}: no {key}")).collect();
    for (key, item) in fields {
        match definition["fields"][key].as_str() {
            Some(kind) => found.extend(problems(schema, kind, &format!("{place}.{key}"), item)),
            None => found.push(format!("{place}: {kind} has no {key}")),
        }
    }
    found
}

fn schema() -> Value {
    serde_json::from_str(include_str!("../vectors/kubernetes-job.json")).unwrap()
}

#[test]
fn manifests_match_the_published_schema() {
    for name in ["job.yaml", "merge.yaml"] {
        let job = manifest(name);
        assert_eq!((&job["apiVersion"], &job["kind"]), (&json!("batch/v1"), &json!("Job")));
        assert_eq!(problems(&schema(), "V1Job", name, &job), Vec::<String>::new());
        let pod = &job["spec"]["template"]["spec"];
        for mount in pod["containers"][0]["volumeMounts"].as_array().unwrap() {
            let volumes = pod["volumes"].as_array().unwrap();
            assert!(volumes.iter().any(|volume| volume["name"] == mount["name"]), "{mount}");
        }
    }
}

#[test]
fn schema_check_finds_errors() {
    let wrong = |place: &str, value: Value| {
        let mut job = manifest("job.yaml");
        *job.pointer_mut(place).unwrap() = value;
        problems(&schema(), "V1Job", "job", &job)
    };
    let found = wrong("/spec/completions", json!("4"));
    assert_eq!(found, ["job.spec.completions: found \"4\", allowed: int"]);
    let found = wrong("/spec/template/spec/containers/0", json!({ "nam": "lab" }));
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!(wrong("/spec/template/spec/volumes", json!({})).len(), 1);
}

/// Runs the pod's command with a program that prints its arguments.
#[test]
fn each_pod_measures_its_shard() {
    let job = manifest("job.yaml");
    let (spec, container) = (&job["spec"], &job["spec"]["template"]["spec"]["containers"][0]);
    assert_eq!(spec["completionMode"], "Indexed");
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("picnic");
    std::fs::write(&program, "#!/bin/sh\necho \"$@\"\n").unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let words = |key: &str| {
        let words = container[key].as_array().unwrap().iter();
        words.map(|word| word.as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let (command, args) = (words("command"), words("args"));
    let mut pod = Command::new(&command[0]);
    pod.args(&command[1..]).args(&args).env("JOB_COMPLETION_INDEX", "2");
    pod.env("PATH", format!("{}:/usr/bin:/bin", folder.path().display()));
    for variable in container["env"].as_array().unwrap() {
        let [name, value] = ["name", "value"].map(|key| variable[key].as_str().unwrap());
        pod.env(name, value);
    }
    let said = String::from_utf8(pod.output().unwrap().stdout).unwrap();
    let count = &spec["completions"];
    assert!(said.ends_with(&format!(" --shard 3/{count} --out /results/part-3\n")), "{said}");
}
