"""Messages for models of tasks that the adapter does not audit. They say what the model is, and what to do."""

from __future__ import annotations

from attnaudit.targets import PAGE

CUSTOM = "docs/transformers.md#wrapped-and-custom-models"
ADAPTER = "docs/adapters.md"
PICTURES, RECORDINGS = "docs/pictures.md", "docs/recordings.md"
#: Each entry has parts of class names, a description of such models, and the key of the advice in `other_task`. The
#: first entry applies that has a part of the model's class name.
_TASKS = (
    (("AudioClassification", "SequenceClassificationAudio", "XVector", "AudioFrameClassification", "CTC"),
     "an audio model", "inputs"),
    (("ObjectDetection", "Segmentation", "DepthEstimation", "MaskedImageModeling", "VideoClassification"),
     "a computer vision model", "inputs"),
    (("SpeechSeq2Seq", "TextToSpectrogram", "TextToWaveform"), "a speech model", "inputs"),
    (("ImageTextToText", "Vision2Seq", "VisualQuestionAnswering", "ImageTextRetrieval"),
     "a model for images and text", "inputs"),
    (("MultipleChoice",), "a model that chooses one of several texts", "output"),
    (("NextSentencePrediction",), "a model for next-sentence prediction", "output"),
    (("PreTraining",), "a model with several outputs for pretraining", "output"),
    (("ConditionalGeneration",), "a generative model that reads or writes more than text", "inputs"),
)  # fmt: skip
#: The same for any other task.
_OTHER_TASK = ("a model for a task that attnaudit does not know", "task")


def other_task(where: object, architecture: str) -> str:
    """Return the error message for a model whose task attnaudit cannot audit.

    Args:
        where: The folder or the name of the model.
        architecture: Name of the model class, such as "ViTForImageClassification"; "" if it is unknown.
    """
    if not architecture:
        return (
            f"{where}: config.json names no architecture, so it is unclear what the model does. Save the classifier "
            "again with save_pretrained(), which writes 'architectures'."
        )
    task = architecture.partition("For")[2]
    what, other = next(
        ((what, other) for endings, what, other in _TASKS if any(ending in task for ending in endings)),
        _OTHER_TASK if task else ("a model without a classification head, so it makes no decision", "head"),
    )
    fix = {
        "inputs": "attnaudit's own adapter takes texts, and pictures or recordings if the model assigns one class to "
        f"each: see {PICTURES} and {RECORDINGS}. For other inputs, write a custom adapter: see {ADAPTER}.",
        "output": f"{PAGE} lists the outputs that an audit can explain. For another output, wrap the model in a module "
        f"that returns the logits of one decision, and audit this module: see {CUSTOM}.",
        "task": f"{PAGE}, {PICTURES} and {RECORDINGS} say which outputs and inputs an audit can explain. For others, "
        f"wrap the model in a module that returns the logits of one decision (see {CUSTOM}), or write a custom adapter "
        f"(see {ADAPTER}).",
        "head": f"Audit the classifier that contains this model. If the classifier is a custom module, see {CUSTOM}.",
    }[other]
    return f"{where}: {architecture} is {what}. {fix}"
