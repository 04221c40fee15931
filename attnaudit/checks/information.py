"""placeholder"""


class InformationRanking: ...
