//! `picnic sciron check`, as people call it.

use crate::common::command;

fn sciron(rules: &str, arguments: &[&str]) -> (i32, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f.rules");
    std::fs::write(&path, rules).unwrap();
    let mut command = command();
    let output = command.args(["sciron", "check"]).arg(&path).args(arguments).output().unwrap();
    let shorten = |bytes: Vec<u8>| {
        let text = String::from_utf8(bytes).unwrap();
        text.replace(&format!("{}/", folder.path().display()), "")
    };
    (output.status.code().unwrap(), shorten(output.stdout), shorten(output.stderr))
}

#[test]
fn valid_files_are_reported_briefly_and_findings_fully() {
    let (code, text, _) = sciron("tcp any any any 22 accept\ndefault drop\n", &[]);
    let summary = "f.rules: 1 rules, default drop; 0 shadowed, 0 redundant, 0 overlaps\n";
    assert_eq!((code, &*text), (0, summary));
    let rules = "tcp any any any any accept\ntcp any 10.0.0.1 any 22 drop\n";
    let (code, text, _) = sciron(rules, &[]);
    assert_eq!(code, 0);
    assert!(
        text.starts_with(
            "f.rules:2: shadowed: tcp any 10.0.0.1/32 any 22 drop\n    never applies; the opposite is decided by line 1: tcp any any any any accept\n"
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
fn rule_file_errors_name_line_and_field() {
    let (code, out, error) = sciron("tcp any any any 22 allow\n", &[]);
    assert_eq!((code, &*out), (2, ""));
    assert_eq!(error, "f.rules:1: action: found allow, allowed: accept or drop\n");
    let (code, out, _) = sciron("tcp any any any 22 allow\n", &["--json"]);
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(code, 2);
    assert_eq!(json["valid"], false);
    assert_eq!(json["file"], "f.rules");
    assert_eq!(json["faults"][0]["field"], "action");
    assert_eq!(json["faults"][0]["line"], 1);
    assert_eq!(json["faults"][0]["found"], "allow");
    assert_eq!(json["faults"][0]["allowed"], "accept or drop");
    assert_eq!(sciron("tcp any any any 22 allow\n", &["--strict"]).0, 2, "wrong, not only strict");
}

#[test]
fn strict_fails_for_every_rule_that_never_applies_and_for_no_other() {
    let clean = "tcp any any any 22 accept\nudp any any any 22 drop\n";
    let overlap = "tcp 10.0.0.0/8 any any any accept\ntcp any 10.0.0.1 any any drop\n";
    let redundant = "tcp any any any 1-1023 drop\ntcp any any any 22 drop\n";
    let shadowed = "tcp any any any 1-1023 drop\ntcp any any any 22 accept\n";
    for (rules, code) in [(clean, 0), (overlap, 0), (redundant, 1), (shadowed, 1)] {
        assert_eq!(sciron(rules, &["--strict"]).0, code, "{rules}");
        assert_eq!(sciron(rules, &["--strict", "--json"]).0, code, "{rules}");
        assert_eq!(sciron(rules, &[]).0, 0, "{rules}");
    }
}

#[test]
fn redundant_rules_and_overlaps_name_both_rules() {
    let rules = "tcp any any any 1-1023 drop\n\ntcp any any any 22 drop\n\
                 any any 10.0.0.1 any any accept\n";
    let (_, text, _) = sciron(rules, &[]);
    assert_eq!(
        text,
        "f.rules:3: redundant: tcp any any any 22 drop\n    \
         never applies; the same is decided by line 1: tcp any any any 1-1023 drop\n\
         f.rules:4: overlap: any any 10.0.0.1/32 any any accept\n    \
         decides differently for packets that also match line 1: tcp any any any 1-1023 drop\n\
         f.rules:4: overlap: any any 10.0.0.1/32 any any accept\n    \
         decides differently for packets that also match line 3: tcp any any any 22 drop\n\
         f.rules: 3 rules, default accept; 0 shadowed, 1 redundant, 2 overlaps\n"
    );
    // All are counted, a hundred told.
    let mut many: String = (0..101).map(|port| format!("tcp any any any {port} drop\n")).collect();
    let told = |many: &str| sciron(many, &[]).1;
    assert!(told(&many).ends_with("0 overlaps\n"), "{}", told(&many));
    many.push_str("any any 10.0.0.1 any any accept\n");
    let text = told(&many);
    assert!(text.ends_with("; 0 shadowed, 0 redundant, 101 overlaps (the first 100 are shown)\n"));
    assert_eq!(text.matches(": overlap: ").count(), 100);
    let json: serde_json::Value = serde_json::from_str(&sciron(&many, &["--json"]).1).unwrap();
    assert_eq!(json["overlap_count"], 101);
    assert_eq!(json["overlaps"].as_array().unwrap().len(), 100);
    let all = &many[many.find('\n').unwrap() + 1..];
    assert!(told(all).ends_with(" 100 overlaps\n"), "{}", told(all));
}

#[test]
fn rule_file_limits_are_exact() {
    // Eight mebibytes, most of it a comment.
    const MOST_BYTES: usize = 8 << 20;
    let rule = "tcp any any any 22 accept\n#";
    let fits = format!("{rule}{}", "x".repeat(MOST_BYTES - rule.len()));
    assert_eq!(sciron(&fits, &[]).0, 0);
    let (code, _, error) = sciron(&format!("{fits}x"), &[]);
    assert_eq!((code, &*error), (2, "f.rules: found more than 8388608 bytes, allowed: no more\n"));
    // Not read to its end, which it has not.
    let output = command().args(["sciron", "check", "/dev/zero"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}
