"""What a report says of an enumerated domain: which part was covered, by bucket, and by setting."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0)]
Float32Bits = Annotated[str, Field(pattern=r"^0x[0-9a-f]{8}$")]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Bucket(_Model):
    """The inputs of one float32 exponent field."""

    exponent: Annotated[int, Field(ge=0, le=255)]
    n: Count = Field(description="inputs compared")
    undefined: Count = Field(default=0, description="inputs for which the paper defines nothing")
    counts: dict[str, Count] = Field(description="of the metrics that are counts")
    causes: dict[str, dict[str, Count]] = Field(description="of each output, mismatches by cause")
    digest: Count | None = Field(
        default=None,
        description="of the reference as a GPU computed it: a sum over inputs, modulo 2^32",
    )


class Undefined(_Model):
    """What the subject does with inputs for which the paper defines nothing."""

    what: str
    n: Count
    zero_code: Count = Field(description="inputs that get the code 0")
    gives_nan: Count = Field(description="inputs given back as NaN")
    gives_infinity: Count = Field(description="inputs given back as an infinity")
    gives_finite: Count = Field(description="inputs given back as a finite value")
    as_reference: Count = Field(description="code and value both as the reference has them")


class Range(_Model):
    """The least and the largest float32 that get a code."""

    low: float
    low_bits: Float32Bits
    high: float
    high_bits: Float32Bits


class Threshold(_Model):
    """Where a code begins and ends, on both sides; none where a side gives it to no input."""

    code: int
    subject: Range | None
    reference: Range | None


class SettingCount(_Model):
    """How many outputs differ from the reference under a setting of its arithmetic."""

    words: str
    arithmetic: dict[str, str | bool | float]
    mismatches: Count


class Checker(_Model):
    """What compared, and how it is known to be right."""

    words: str
    digests: str | None = Field(
        default=None, description="of buckets that were covered whole, against those of the CPU"
    )
    sample: str | None = Field(default=None, description="compared with the CPU in this run")


class Enumeration(_Model):
    """A case over a domain."""

    domain: str = Field(description="what it holds, as a sentence goes on after a number")
    size: Count = Field(description="inputs of the whole domain")
    covered: Count = Field(description="inputs that were fed")
    whole: bool = Field(description="whether that is every one: only then is anything proved")
    checker: Checker
    settings: list[SettingCount]
    totals: dict[str, Count] = Field(description="counts that belong to no bucket")
    largest: dict[str, Count] = Field(description="of each output, the largest distance in ULP")
    undefined: list[Undefined] = []
    thresholds: list[Threshold] = []
    buckets: list[Bucket]
