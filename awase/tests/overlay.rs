//! A disk whose changes go beside, with libnbd's clients.

use testkit::server::{Sandbox, client};

#[test]
fn what_clients_write_is_gone_at_the_end_and_two_servers_have_one_image() {
    let sandbox = Sandbox::new();
    let image = sandbox.file("golden.img");
    std::fs::write(&image, vec![7; 4 << 20]).expect("an image");
    let config = "[[export]]\nname = \"golden\"\nkind = \"file\"\npath = \"golden.img\"\noverlay = true\n";
    let new = sandbox.file("new.img");
    std::fs::write(&new, vec![8; 4 << 20]).expect("another image");
    let config = sandbox.write("awase.toml", config);
    let serve = |data: &str| {
        let data = sandbox.file(data).display().to_string();
        sandbox.serve(&["--config", config.to_str().expect("UTF-8"), "--data", &data, "--nfs", "none"])
    };
    let (first, second) = (serve("first"), serve("second"));
    let uri = |data: &str| format!("nbd+unix:///golden?socket={}", sandbox.file(data).join("nbd.sock").display());
    client("nbdcopy", &["--flush", new.to_str().expect("UTF-8"), &uri("first")]);
    let back = |data: &str| {
        let copy = sandbox.file("back.img");
        client("nbdcopy", &[&uri(data), copy.to_str().expect("UTF-8")]);
        std::fs::read(copy).expect("a copy")
    };
    assert!(back("first").iter().all(|byte| *byte == 8), "what was written is read");
    assert!(back("second").iter().all(|byte| *byte == 7), "another server has the image as it is");
    first.end();
    second.end();
    assert!(std::fs::read(&image).expect("the image").iter().all(|byte| *byte == 7), "the image is as it was");
    let again = serve("first");
    assert!(back("first").iter().all(|byte| *byte == 7), "what was written is gone");
    again.end();
}

#[test]
fn keys_that_contradict_are_told() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.file("golden.img"), vec![7; 1 << 20]).expect("an image");
    let refusal = |keys: &str| {
        let export = format!("[[export]]\nname = \"a\"\nkind = \"file\"\npath = \"golden.img\"\n{keys}\n");
        let config = sandbox.write("awase.toml", &export);
        let output = sandbox.run(&["check", "--config", config.to_str().expect("UTF-8")]);
        assert_eq!(output.status.code(), Some(2));
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    };
    let told = refusal("overlay = true\nread_only = true");
    assert!(told.contains("overlay") && told.contains("does not go with read_only = true"), "{told}");
    let told = refusal("overlay_size = \"1MiB\"");
    assert!(told.contains("overlay_size") && told.contains("needs overlay = true"), "{told}");
}
