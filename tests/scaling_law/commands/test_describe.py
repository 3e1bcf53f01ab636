"""`scaling-law describe`: tables, JSON, and the exit status of a loss that is not to be trusted."""

import json

from tests.scaling_law.configs import MIXTRAL


def test_the_shell_describes(tmp_path, shell):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(MIXTRAL))
    assert "8 experts" in shell("describe", path).output
    assert shell("describe", tmp_path, "--tokens", "2T").exit_code == 1  # 292 times the compute of the law's runs
    done = shell("describe", tmp_path, "--tokens", "150B", "--json")
    data = json.loads(done.output)
    assert done.exit_code == 0
    assert data["variables"]["experts"] == 4
    assert data["prediction"]["optimum"]["best"]["loss"] < data["prediction"]["loss"]
    assert shell("describe", tmp_path, "--tokens", "1000T").exit_code == 1
    path.write_text(json.dumps(MIXTRAL | {"model_type": "t5", "is_encoder_decoder": True}))
    refused = shell("describe", tmp_path)
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
