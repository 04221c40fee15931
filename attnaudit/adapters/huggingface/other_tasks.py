"""Messages about Transformers models of tasks that the adapter does not audit: what they are, and what to do."""

from __future__ import annotations

CUSTOM = "docs/transformers.md#wrapped-and-custom-models"
ADAPTER = "docs/adapters.md"
#: Ending of a class name -> what such a model is, and what to do. The first one that fits applies.
_TASKS = (
    (("ImageClassification", "ImageClassificationWithTeacher"), "a classifier of images", "inputs"),
    (("AudioClassification", "SequenceClassificationAudio", "XVector", "AudioFrameClassification", "CTC"),
     "a model of sound", "inputs"),
    (("ObjectDetection", "Segmentation", "DepthEstimation", "MaskedImageModeling", "VideoClassification"),
     "a model of images", "inputs"),
    (("SpeechSeq2Seq", "TextToSpectrogram", "TextToWaveform"), "a model of speech", "inputs"),
    (("ImageTextToText", "Vision2Seq", "VisualQuestionAnswering", "ImageTextRetrieval"),
     "a model of images and text", "inputs"),
    (("TokenClassification",), "a tagger, which gives a label to every token", "output"),
    (("QuestionAnswering",), "a model that marks the answer to a question in a text", "output"),
    (("MultipleChoice",), "a model that chooses among several texts", "output"),
    (("NextSentencePrediction",), "a model that tells whether one text follows another", "output"),
    (("MaskedLM", "PreTraining"), "a masked language model, which fills gaps", "output"),
)  # fmt: skip


def other_task(where: object, architecture: str) -> str:
    """Return the message for a model of a task that is not audited.

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
        ("a model without a classification head, which decides nothing", "head"),
    )
    fix = {
        "inputs": f"The adapter for Transformers reads texts. Write an adapter for other inputs: see {ADAPTER}.",
        "output": "What is audited is one decision per text. Put the model into a module that returns the logits of "
        f"one decision, and audit this module: see {CUSTOM}.",
        "head": f"Audit the classifier that contains it. If this is a module of your own, see {CUSTOM}.",
    }[other]
    return f"{where}: {architecture} is {what}. {fix}"
