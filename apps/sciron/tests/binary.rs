//! The `sciron` binary, as people call it.

use assert_cmd::Command;

fn sciron(rules: &str, arguments: &[&str]) -> (i32, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f.rules");
    std::fs::write(&path, rules).unwrap();
    let mut command = Command::cargo_bin("sciron").unwrap();
    let output = command.arg("--check").arg(&path).args(arguments).output().unwrap();
    let shorten = |bytes: Vec<u8>| {
        let text = String::from_utf8(bytes).unwrap();
        text.replace(&format!("{}/", folder.path().display()), "")
    };
    (output.status.code().unwrap(), shorten(output.stdout), shorten(output.stderr))
}

#[test]
fn a_good_file_is_told_in_short_and_findings_at_length() {
    let (code, text, _) = sciron("tcp any any any 22 accept\ndefault drop\n", &[]);
    let summary = "f.rules: 1 rules, default drop; 0 shadowed, 0 redundant, 0 overlaps\n";
    assert_eq!((code, &*text), (0, summary));
    let rules = "tcp any any any any accept\ntcp any 10.0.0.1 any 22 drop\n";
    let (code, text, _) = sciron(rules, &[]);
    assert_eq!(code, 0);
    assert!(
        text.starts_with(
            "f.rules:2: shadowed: tcp any 10.0.0.1/32 any 22 drop\n    never applies, decided \
             the other way by line 1: tcp any any any any accept\n"
        ),
        "{text}"
    );
    assert_eq!(sciron(rules, &["--strict"]).0, 1);
    let (code, json, _) = sciron(rules, &["--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(code, 0);
    assert_eq!(json["shadowed"][0]["line"], 2);
    assert_eq!(json["valid"], true);
}

#[test]
fn a_wrong_file_is_told_by_line_and_field() {
    let (code, out, error) = sciron("tcp any any any 22 allow\n", &[]);
    assert_eq!((code, &*out), (2, ""));
    assert_eq!(error, "f.rules:1: action: found allow, allowed is accept or drop\n");
    let (code, out, _) = sciron("tcp any any any 22 allow\n", &["--json"]);
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(code, 2);
    assert_eq!(json["faults"][0]["field"], "action");
    assert_eq!(json["faults"][0]["line"], 1);
}
