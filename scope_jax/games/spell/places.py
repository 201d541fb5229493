"""Names of regions that are written behind a place: countries, states, continents."""

from __future__ import annotations

import re

# Names that are as often those of a city (New York, Washington, Singapore) are left out: they may be another answer.
_CONTINENTS = "Africa, Antarctica, Asia, Central America, Europe, North America, Oceania, South America"
_COUNTRIES = """
Afghanistan, Albania, Algeria, Andorra, Angola, Argentina, Armenia, Australia, Austria, Azerbaijan, Bahamas, Bahrain,
Bangladesh, Barbados, Belarus, Belgium, Belize, Benin, Bhutan, Bolivia, Bosnia and Herzegovina, Botswana, Brazil,
Brunei, Bulgaria, Burkina Faso, Burundi, Cambodia, Cameroon, Canada, Cape Verde, Central African Republic, Chad,
Chile, China, Colombia, Comoros, Congo, Costa Rica, Croatia, Cuba, Cyprus, Czechia, Czech Republic, Democratic
Republic of the Congo, Denmark, Dominica, Dominican Republic, East Timor, Ecuador, Egypt, El Salvador, Equatorial
Guinea, Eritrea, Estonia, Eswatini, Ethiopia, Fiji, Finland, France, Gabon, Gambia, Germany, Ghana, Greece, Greenland,
Grenada, Guinea, Guyana, Haiti, Honduras, Hungary, Iceland, India, Indonesia, Iran, Iraq, Ireland, Israel, Italy,
Ivory Coast, Jamaica, Japan, Jordan, Kazakhstan, Kenya, Kosovo, Kyrgyzstan, Laos, Latvia, Lebanon, Lesotho, Liberia,
Libya, Liechtenstein, Lithuania, Madagascar, Malawi, Malaysia, Maldives, Mali, Malta, Mauritania, Mauritius, Mexico,
Moldova, Mongolia, Montenegro, Morocco, Mozambique, Myanmar, Namibia, Nepal, Netherlands, New Zealand, Nicaragua,
Niger, Nigeria, North Korea, North Macedonia, Norway, Oman, Pakistan, Palestine, Papua New Guinea, Paraguay, Peru,
Philippines, Poland, Portugal, Puerto Rico, Qatar, Romania, Russia, Rwanda, Samoa, Saudi Arabia, Senegal, Serbia,
Sierra Leone, Slovakia, Slovenia, Somalia, South Africa, South Korea, South Sudan, Soviet Union, Spain, Sri Lanka,
Sudan, Suriname, Sweden, Switzerland, Syria, Taiwan, Tajikistan, Tanzania, Thailand, Togo, Tonga, Trinidad and Tobago,
Tunisia, Turkey, Turkmenistan, Türkiye, UAE, UK, US, USA, Uganda, Ukraine, United Arab Emirates, United Kingdom,
United States, United States of America, Uruguay, USSR, Uzbekistan, Venezuela, Vietnam, Yemen, Zambia, Zimbabwe
"""
_STATES = """
Alabama, Alaska, Arizona, Arkansas, California, Colorado, Connecticut, Delaware, Florida, Georgia, Hawaii, Idaho,
Illinois, Indiana, Iowa, Kansas, Kentucky, Louisiana, Maine, Maryland, Massachusetts, Michigan, Minnesota,
Mississippi, Missouri, Montana, Nebraska, Nevada, New Hampshire, New Jersey, New Mexico, New York State, North
Carolina, North Dakota, Ohio, Oklahoma, Oregon, Pennsylvania, Rhode Island, South Carolina, South Dakota, Tennessee,
Texas, Utah, Vermont, Virginia, Washington State, West Virginia, Wisconsin, Wyoming, AL, AK, AZ, AR, CA, CO, CT, DC,
DE, FL, GA, HI, ID, IL, IN, IA, KS, KY, LA, ME, MD, MA, MI, MN, MS, MO, MT, NE, NV, NH, NJ, NM, NY, NC, ND, OH, OK,
OR, PA, RI, SC, SD, TN, TX, UT, VT, VA, WA, WV, WI, WY, Alberta, British Columbia, Manitoba, New Brunswick,
Newfoundland, Nova Scotia, Ontario, Quebec, Québec, Saskatchewan, New South Wales, Queensland, South Australia,
Tasmania, Victoria, Western Australia, England, Scotland, Wales, Northern Ireland, Bavaria, Saxony, Catalonia,
Andalusia, Tuscany, Lombardy, Sicily, Normandy, Brittany, Flanders
"""
_COMPASS = re.compile(r"(?:(?:north|south|east|west|central)(?:ern)?\s?)+", re.IGNORECASE)  # southern France
_LEVELS = {
    name.strip().casefold(): level
    for level, names in enumerate((_STATES, _COUNTRIES, _CONTINENTS), start=1)
    for name in names.split(",")
}


def lies_in(place: str, region: str) -> bool:
    """True if `region` is a state, country or continent and `place` is not one of its own or a higher kind: Austin lies
    in Texas and Texas in the USA, but Texas not in Ohio. Not looked up: whether it does."""
    return max(_level(region), _level(_COMPASS.sub("", region))) > _level(place)


def _level(name: str) -> int:
    return _LEVELS.get(" ".join(name.casefold().replace(".", "").split()).removeprefix("the "), 0)
