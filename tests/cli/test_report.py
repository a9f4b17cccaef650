def test_what_cannot_be_reported_is_bad_input(sinkscope, tmp_path):
    assert "nothing at" in sinkscope("report", "absent").error
    (tmp_path / "broken.nc").write_bytes(b"\x89HDF no more")
    assert "broken.nc" in sinkscope("report", "broken.nc").error
    assert not (tmp_path / "report.html").exists()


def test_a_page_that_cannot_be_written_is_bad_input(sinkscope, tmp_path):
    (tmp_path / "a-file").write_text("")
    assert "cannot write" in sinkscope("report", "runs", "--out", "a-file/page.html").error
